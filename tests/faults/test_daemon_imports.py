"""What a daemon has loaded after its first readings: each of these modules costs memory on every node, all day."""

from __future__ import annotations

from pathlib import Path

from fault_daemon import watched

NOT_FOR_A_DAEMON = (
    *("hashlib", "_hashlib", "ssl", "hmac", "secrets"),  # OpenSSL, 3.5 MiB
    *("asyncio", "concurrent.futures", "multiprocessing", "zmq.asyncio", "zmq.green", "zmq.auth"),
    *("email", "http", "urllib.request", "importlib.metadata", "xml", "sqlite3", "tomllib", "dataclasses"),
    *("psutil", "textual", "rich", "torch", "numpy"),
    *("gpuwatch.client", "gpuwatch.tui", "gpuwatch.export", "gpuwatch.replay", "gpuwatch.hook"),
    "gpuwatch.diagnose",  # 1.6 MiB, with the first diagnosis
)


def loaded(log: str) -> set[str]:
    """Modules and their packages, of what -X importtime wrote."""
    names = {line.rpartition("|")[2].strip() for line in log.splitlines() if line.startswith("import time:")}
    return names | {name.partition(".")[0] for name in names}


def test_a_daemon_that_reads_and_publishes_has_loaded_only_what_it_needs_for_that(tmp_path: Path) -> None:
    with watched(tmp_path, "gpu 0 gpm.2=50", env={"PYTHONPROFILEIMPORTTIME": "1"}) as node:
        node.ticks(3)
        names = loaded(node.log())
    assert {"zmq", "pynvml", "gpuwatch.collect.procfs"} <= names, "the list is read wrongly"
    found = {name for name in names for banned in NOT_FOR_A_DAEMON if name == banned or name.startswith(banned + ".")}
    assert found == set()
