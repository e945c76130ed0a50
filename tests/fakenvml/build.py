"""Builds the fake libnvidia-ml.so.1 and puts it in place of the real one.

Owns: compiling once per process, environments for child processes, loading into this process. Refuses: scenarios.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml

LIBRARY = "libnvidia-ml.so.1"
_SOURCE = Path(__file__).with_name("fake_nvml.c")
_copies = itertools.count()


# What a driver generation lacks, by linker: NVML's symbols are only ever added.
_SINCE_545 = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetProcessesUtilizationInfo",
              "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetAddressingMode", "nvmlDeviceGetPlatformInfo*")  # fmt: skip
_SINCE_530 = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedClocksEventReasons",
              "nvmlDeviceGetJpgUtilization", "nvmlDeviceGetOfaUtilization", "nvmlDeviceGetRunningProcessDetailList",
              "nvmlSystemGetConfCompute*", "nvmlDeviceGetConfCompute*")  # fmt: skip
_SINCE_510 = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3",
              "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
              "nvmlDeviceGetDynamicPstatesInfo", "nvmlGpm*")  # fmt: skip
HIDDEN = {
    "": (),
    "535": _SINCE_545,
    "535.43": (*_SINCE_545, "nvmlDeviceGetRunningProcessDetailList"),
    "525": (*_SINCE_545, *_SINCE_530),
    "470": (*_SINCE_545, *_SINCE_530, *_SINCE_510),
}
"""Driver generation to the symbols that its library does not have; "" is the newest."""


@functools.cache
def built(generation: str = "", version: int = 580) -> Path:
    """The compiled library, in a temporary folder of this process. Raises FileNotFoundError without a C compiler.

    ``version`` is what the scenario's ``kernel`` is compared with.
    """
    folder = Path(tempfile.mkdtemp(prefix="fakenvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}"]
    flags.append(f"-DLIBRARY_VERSION={version}")
    if generation == "535.43":
        flags.append("-DPROCESS_BYTES=32")
    if HIDDEN[generation]:
        symbols = folder / "symbols.map"
        symbols.write_text("{ local: " + "".join(f"{name}; " for name in HIDDEN[generation]) + "};\n")
        flags.append(f"-Wl,--version-script={symbols}")
    out = folder / LIBRARY
    subprocess.run(["gcc", *flags, "-o", str(out), str(_SOURCE), "-lm", "-lpthread"], check=True)
    return out


def fake_env(tmp_path: Path, scenario_text: str, generation: str = "") -> dict[str, str]:
    """The environment in which a child process finds the fake instead of the driver's library.

    Its calls are logged to ``tmp_path / "nvml.trace"``, see :func:`calls`; :func:`steer` changes what it answers.
    """
    scenario = tmp_path / "nvml.scenario"
    scenario.write_text(scenario_text if scenario_text.endswith("\n") else scenario_text + "\n")
    return {
        **os.environ,
        "LD_LIBRARY_PATH": f"{built(generation).parent}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":"),
        "FAKE_NVML_SCENARIO": str(scenario),
        "FAKE_NVML_TRACE": str(tmp_path / "nvml.trace"),
    }


def steer(tmp_path: Path, line: str) -> None:
    """Add a statement that holds from now on, for the child process that ``fake_env`` was made for."""
    with (tmp_path / "nvml.scenario").open("a") as scenario:
        scenario.write(line + "\n")


def calls(tmp_path: Path) -> Counter[tuple[str, int | None]]:
    """How often each (function, GPU) was called so far; the GPU is None for calls without a device.

    A line that is being written is not there yet.
    """
    trace = tmp_path / "nvml.trace"
    text = trace.read_text() if trace.exists() else ""
    found: Counter[tuple[str, int | None]] = Counter()
    for line in text[: text.rfind("\n") + 1].splitlines():
        function, gpu, _ = line.split()
        found[function, None if gpu == "-" else int(gpu)] += 1
    return found


class Fake:
    """The fake, loaded into this process in place of the driver's library."""

    def __init__(self, library: ctypes.CDLL, tmp_path: Path) -> None:
        self._library = library
        self._tmp_path = tmp_path
        self._advanced_ns = 0

    def set(self, line: str) -> None:
        """Add a statement that holds from now on."""
        self._library.fake_nvml_set(line.encode())

    def advance(self, milliseconds: float) -> None:
        """Move the driver's clock."""
        self._library.fake_nvml_advance(ctypes.c_double(milliseconds))

    def release(self) -> None:
        """Let hanging calls return."""
        self._library.fake_nvml_release()

    def calls(self) -> Counter[tuple[str, int | None]]:
        """See :func:`calls`."""
        return calls(self._tmp_path)

    def forget_calls(self) -> None:
        """Count from zero."""
        os.truncate(self._tmp_path / "nvml.trace", 0)


@contextmanager
def loaded(tmp_path: Path, scenario_text: str, generation: str = "") -> Iterator[Fake]:
    """The unmodified pynvml of this process talks to a fresh copy of the fake."""
    # A copy of its own: the dynamic linker gives the same file back with the state of the test before.
    copy = tmp_path / f"fake{next(_copies)}.so"
    shutil.copy(built(generation), copy)
    before = {name: os.environ.get(name) for name in ("FAKE_NVML_SCENARIO", "FAKE_NVML_TRACE")}
    env = fake_env(tmp_path, scenario_text, generation)
    os.environ.update({name: env[name] for name in before})
    was_loaded = pynvml.nvmlLib
    fake = Fake(ctypes.CDLL(str(copy)), tmp_path)
    try:
        # Cached function pointers would still lead into the library that was loaded before.
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib = fake._library
        yield fake
    finally:
        fake.release()
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib = was_loaded
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
