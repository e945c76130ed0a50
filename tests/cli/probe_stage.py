"""A ``gpuwatch`` process of its own whose probes are a script: for what happens at the edge of a process.

Owns: no assertion.
"""

from __future__ import annotations

import sys
from pathlib import Path

ANSWER = """
import json, os, sys
value = {"name": "rate", "unit": "GB/s", "median": 50.0, "p20": 49.0, "p80": 51.0, "n": 30}
print(json.dumps({
    "probe": sys.argv[1], "status": "ok", "device": "cpu", "device_name": "Fake CPU", "values": [value],
    "settings": {"python": os.environ.get("ENVIRONMENT", "ours")},
}))
"""
"""A good result, and in which environment it was measured."""


def command(folder: Path, *arguments: str, probe: str = ANSWER) -> list[str]:
    """The command line of ``gpuwatch ARGUMENTS``, with ``probe`` as the script of every probe."""
    probes = folder / "gpuwatch_probes"
    probes.mkdir(exist_ok=True)
    (probes / "__main__.py").write_text(probe)
    code = (
        "import sys; from pathlib import Path\n"
        "from gpuwatch.daemon import probing; from gpuwatch.cli.main import entry\n"
        f"probing.probes_folder = lambda: Path({str(probes)!r})\n"
        f"probing.lock_folder = lambda env: Path({str(folder)!r})\n"
        f"sys.argv[1:] = {list(arguments)!r}\n"
        "entry()"
    )
    return [sys.executable, "-c", code]
