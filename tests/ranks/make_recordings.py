"""Makes the recordings of ``tests/recordings/ranks``: ``PYTHONPATH=.:tests python -m ranks.make_recordings``.

Owns: running the four jobs, recording both ranks, taking out what names the machine. Refuses: expectations.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import sysconfig
import tempfile
from pathlib import Path

from probes.faults.ddp_run import table
from ranks.two_cards import ROOT, ask, running

OUT = ROOT / "tests" / "recordings" / "ranks"
SECONDS = 5


def main() -> None:
    """All four jobs, both ranks of each."""
    OUT.mkdir(exist_ok=True)
    labels = {}
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        for case in table(cpus=2, depth=0, device="cpu").values():
            with running(case, Path(folder) / "job") as (job, env):
                for rank, pid in enumerate(job.pids()):
                    file = OUT / f"{case.name}-{rank}.gwrec"
                    ask(env, "record", str(file), "--force", "--for", f"{SECONDS}s", "--pid", str(pid))
                    _neutral(file, folder)
                    labels[file.stem] = {"pid": pid, "other_pid": job.pids()[1 - rank], "truth": case.truth[rank]}
                    print(file.name, file.stat().st_size, "bytes", file=sys.stderr)
    (OUT / "labels.json").write_text(json.dumps(labels, indent=1) + "\n")


def _neutral(file: Path, folder: str) -> None:
    """Paths of this machine, its name and its cgroups become somebody's."""
    places = {folder: "/data", str(ROOT): "/home/ann/job", sys.prefix: "/opt/env"}
    places[str(Path(sysconfig.get_paths()["stdlib"]).parents[1])] = "/usr"
    text = gzip.decompress(file.read_bytes()).decode()
    for place in sorted(places, key=len, reverse=True):
        text = text.replace(place, places[place])
    text = re.sub(r'"hostname":"[^"]*"', '"hostname":"node"', text)
    text = re.sub(r'"kernel":"[^"]*"', '"kernel":"6.1"', text)
    text = re.sub(r'"boot_id":"[^"]*"', '"boot_id":"boot"', text)
    text = re.sub(r'"job":"tcp [^ "]*:', '"job":"tcp node:', text)
    text = re.sub(r'"cgroup":"[^"]*"', '"cgroup":"/job"', text)
    text = re.sub(r'"container":"[^"]*"', '"container":""', text)
    with file.open("wb") as raw, gzip.GzipFile(file.stem, "wb", 9, raw, 0) as out:
        out.write(text.encode())


if __name__ == "__main__":
    main()
