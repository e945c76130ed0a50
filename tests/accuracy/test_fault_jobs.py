"""Some jobs really run, tiny and on the CPU: what is recorded is a job, and nothing about it tells its label."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from probes.faults import cases, files, run, store
from probes.faults.host import Forker
from probes.faults.plan import encode, plan_of

ROOT = Path(__file__).resolve().parents[2]
RECORDER = """
import json, pathlib, shutil, sys
verb, rest = sys.argv[1], sys.argv[2:]
recording, log = {recording!r}, pathlib.Path({log!r})
if verb == "record":
    pid = rest[rest.index("--pid") + 1]
    seen = dict(argv=rest, job=[pathlib.Path(f"/proc/{{pid}}/{{name}}").read_bytes().decode("utf-8", "replace")
                                for name in ("cmdline", "environ", "comm")])
    with log.open("a") as file:
        file.write(json.dumps(seen) + "\\n")
    shutil.copy(recording, rest[0])
else:
    finding = dict(cause="loader_too_few_workers", remedy="num_workers=3 (now 1)")
    print(json.dumps(dict(diagnoses=[dict(findings=[finding])])))
"""


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, object]]]:
    """One batch of two cases through the runner, with a recorder that writes down what it could read."""
    folder = tmp_path_factory.mktemp("faults")
    recorder = folder / "recorder.py"
    recording = ROOT / "tests" / "recordings" / "forgotten_notebook.gwrec"
    recorder.write_text(RECORDER.format(recording=str(recording), log=str(folder / "seen.jsonl")), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "probes.faults.run", "--device", "cpu", "--out", str(folder), "--data", str(folder),
         "--cases", "remote_store,stuck_workers", "--record-s", "0.3", "--fix-s", "0.3",
         "--advice", "--recorder", f"{sys.executable} {recorder}"],
        cwd=ROOT, capture_output=True, text=True, timeout=55, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(next(folder.glob("results-*.json")).read_text(encoding="utf-8"))
    assert document["schema"] == run.SCHEMA
    return folder, document["runs"]


def test_each_job_trains_and_its_repair_is_measured_in_samples(
    batch: tuple[Path, list[dict[str, object]]],
) -> None:
    by_case = {result["case"]: result for result in batch[1]}
    assert set(by_case) == {"remote_store", "stuck_workers"}
    for name, result in by_case.items():
        assert "error" not in result, result
        twins = result["twins"]
        assert isinstance(twins, list)
        own = next(twin for twin in twins if twin["role"] == "own")
        assert own["rate"] > 0, (name, own)
    assert by_case["stuck_workers"]["fault"] == {"rate": 0.0, "watched": 0.0}
    slow = by_case["remote_store"]["fault"]
    assert isinstance(slow, dict)
    assert slow["rate"] > 0, "the ailing job is measured before it is watched"


def test_what_the_diagnosis_advises_is_tried_when_no_repair_was_the_same(
    batch: tuple[Path, list[dict[str, object]]],
) -> None:
    twins = next(result["twins"] for result in batch[1] if result["case"] == "remote_store")
    assert isinstance(twins, list)
    advised = next(twin for twin in twins if twin["role"] == "advice")
    assert advised["change"] == {"workers": 3}
    assert advised["rate"] > 0


def test_nothing_that_a_diagnosis_can_read_tells_the_label(batch: tuple[Path, list[dict[str, object]]]) -> None:
    folder, results = batch
    lines = (folder / "seen.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(results)
    words = {*cases.table(), *(cause for case in cases.table().values() for cause in case.causes)}
    for line in lines:
        assert not [word for word in words if word in line]
        assert "probes.faults.train" in line
    commands = {json.loads(line)["job"][0] for line in lines}
    assert len(commands) == 1, "the command line differs from job to job"


def test_no_job_outlives_its_batch(batch: tuple[Path, list[dict[str, object]]]) -> None:
    for result in batch[1]:
        pid = result["pid"]
        assert isinstance(pid, int)
        assert not alive(pid)


def test_a_stuck_job_ends_with_the_process_that_forked_it(tmp_path: Path) -> None:
    files.lay_out(tmp_path, 1, 64)
    forker = Forker(tmp_path, sys.executable)
    job = forker.job()
    try:
        plan = {**cases.table()["stuck_workers"].base, "device": "cpu", "tiny": True, "batch": 2, "depth": 1}
        job.say(plan=json.loads(encode(plan_of(plan))))
        assert job.hear(30.0) == {"ready": True}
        assert os.getpgid(job.pid) == job.pid
    finally:
        forker.close()
    # The group holds the workers too: they hang in a lock and watch nobody.
    deadline = time.monotonic() + 20.0
    while alive(job.pid) and time.monotonic() < deadline:
        job.hear(0.05)
    job.end()
    assert not alive(job.pid)


def alive(group: int) -> bool:
    """Whether a process of this group still runs; one that only waits to be reaped does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _parent, pgrp = stat.read_text(encoding="utf-8").rsplit(")", 1)[1].split()[:3]
            if int(pgrp) == group and state not in "ZX":
                return True
    return False


def test_the_object_store_serves_real_objects_and_refuses_others() -> None:
    from http.server import ThreadingHTTPServer
    from threading import Thread

    server = ThreadingHTTPServer(("127.0.0.1", 0), store.handler([b"zero", b"one"], delay_s=0.0))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        base = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(f"{base}/1", timeout=10) as answer:
            assert answer.read() == b"one"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{base}/2", timeout=10)
        refused.value.close()
        assert refused.value.code == 404
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
