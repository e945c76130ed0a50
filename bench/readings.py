"""Where the daemon under measurement reads from: the real driver, the stand-in of the tests, or a recording.

Owns: the choice, and the environment that makes it so. Refuses: measuring.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "gpuwatch" / "data" / "starved-loader.gwrec"
_HAS_DRIVER = "import ctypes, sys; sys.exit(ctypes.CDLL('libnvidia-ml.so.1').nvmlInitWithFlags(0))"
"""In a child: a driver call may hang, and NVML must not stay open in the process that measures."""


class Readings(NamedTuple):
    """A source of readings."""

    name: str
    daemon_flags: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    has_nvml: bool = True

    def environment(self) -> dict[str, str]:
        """For the daemon's process; settings of this user or machine do not apply.

        Bytecode goes to a folder of the benchmark: whoever forbids Python to keep it measures the compiler, in each
        start and in each module that is loaded later.
        """
        own = {name: value for name, value in os.environ.items() if not name.startswith("GPUWATCH_")}
        own.pop("PYTHONDONTWRITEBYTECODE", None)
        return {"PYTHONPYCACHEPREFIX": bytecode()} | own | dict(self.variables)


@functools.cache
def bytecode() -> str:
    """A folder that lasts as long as this process."""
    folder = tempfile.TemporaryDirectory(prefix="gpuwatch-bytecode-")
    atexit.register(folder.cleanup)
    return folder.name


def choose(folder: Path, replay: Path | None) -> Readings:
    """The recording that was asked for, else the real driver, else the fake one, else the bundled recording."""
    if replay is not None:
        return _recorded(replay)
    return driver_of_this_machine() or fake(folder, 8) or _recorded(BUNDLED)


def driver_of_this_machine() -> Readings | None:
    """The real one, or None without."""
    return Readings("the NVIDIA driver of this machine") if _has_driver({}) else None


def _recorded(file: Path) -> Readings:
    return Readings(f"recording {file.name}", ("--replay", str(file)), has_nvml=False)


def _has_driver(variables: dict[str, str]) -> bool:
    try:
        child = subprocess.run(
            [sys.executable, "-c", _HAS_DRIVER],
            env=os.environ | variables,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return child.returncode == 0


def fake(folder: Path, gpus: int) -> Readings | None:
    """The tests' NVML library with so many busy GPUs and one process on all of them; None without a C compiler."""
    sys.path.append(str(ROOT / "tests"))
    from fakenvml.build import built

    try:
        library = built()
    except (OSError, subprocess.CalledProcessError):
        return None
    scenario = folder / f"scenario{gpus}"
    # Our own pid stands for the job: it is there, and busy enough for the daemon not to diagnose it.
    scenario.write_text(SCENARIO.format(gpus=gpus, pid=os.getpid()), encoding="utf-8")
    variables = {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML_SCENARIO": str(scenario)}
    if not _has_driver(variables):
        return None
    return Readings("the tests' stand-in for the NVML library (no driver here)", variables=tuple(variables.items()))


SCENARIO = """\
gpus={gpus} driver=580.82.07 cuda=13000
gpu * name="NVIDIA H200" arch=9 cc=9.0 gpm=1 total=150754820096 limit=700000 maxsm=1980
gpu * util=97 memutil=41..55/7000 used=60000000000..90000000000/9000 power=380000..690000/5000 temp=52..71/11000
gpu * sm=1980,1965,1980,1950 mem=3201 reasons=0 procs={pid}:61728394506:C
gpu * gpm.1=85..99/3000 gpm.2=70..92/4000 gpm.3=30..50/5000 gpm.5=20..60/6000 gpm.10=25..45/7000
gpu * gpm.20=100..900/3000 gpm.21=500..9000/4000
"""
