"""What a user waits for: nothing loads a library that it does not need. Each check has an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("zmq", "textual", "rich", "msgspec", "pynvml", "psutil", "torch", "asyncio", "tomllib")


def loaded_by(statement: str, names: tuple[str, ...]) -> set[str]:
    """Those of ``names`` that are loaded after ``statement``."""
    code = f"import sys\n{statement}\nprint(*[n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import gpuwatch", set()),
        ("import gpuwatch.hook", set()),
        ("import gpuwatch.daemon.watch, gpuwatch.daemon.steps", {"msgspec"}),
        ("import gpuwatch.cli.main", set()),
        ("import gpuwatch.cli.daemon, gpuwatch.cli.config", set()),
        ("import gpuwatch.wire, gpuwatch.model", {"msgspec"}),
        ("import gpuwatch.config", {"msgspec"}),
        ("import gpuwatch.client.endpoints", {"msgspec"}),
        ("import gpuwatch.client.embedded", {"msgspec"}),
        ("import gpuwatch.client.connection", {"msgspec", "zmq"}),
        ("import gpuwatch.daemon.service", {"msgspec", "zmq"}),
        ("import gpuwatch.daemon.inquiries", {"msgspec"}),
    ],
)
def test_a_module_loads_only_what_it_needs(statement: str, allowed: set[str]) -> None:
    assert loaded_by(statement, HEAVY) <= allowed


def test_a_job_pays_for_no_module_that_an_interpreter_has_not_loaded_anyway() -> None:
    costly = ("typing", "socket", "json", "pathlib", "logging", "selectors", "contextlib", "gpuwatch.model")
    assert loaded_by("import gpuwatch.hook", costly) <= loaded_by("import threading", costly)


def test_help_loads_no_sub_command() -> None:
    code = (
        "import contextlib, io\nfrom gpuwatch.cli.main import run\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n    run(['-h'])"
    )
    assert loaded_by(code, ("gpuwatch.cli.daemon", "gpuwatch.cli.status", *HEAVY)) == set()
