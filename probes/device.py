"""The device and the switches that change a figure.

Owns: importing torch, choosing the device, pinning TF32 and cuDNN switches and reading them back, admission facts,
cache sizes, giving memory back. Refuses: timing, NVML.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from . import host_memory
from .report import BusyError, Report, UnavailableError

GIB = 1024**3
CACHES = 8
"""A working set of this many caches is read from memory."""


class Target(NamedTuple):
    """An open device and everything a probe asks of it."""

    torch: Any
    device: Any
    """A ``torch.device`` with its index."""
    is_cuda: bool
    uuid: str
    name: str
    free_bytes: int
    total_bytes: int
    capability: int
    """Major compute capability: 8 and newer have bf16 and TF32. 0 for a CPU."""
    cache_bytes: int = 0
    """The last cache before memory: L2 of a GPU, all last-level caches of the CPUs; 0 when not known."""


def load_torch() -> Any:
    """The torch module. Raises UnavailableError with the remedy."""
    # It would override every TF32 switch below; libraries read it when they are loaded.
    overridden = os.environ.pop("NVIDIA_TF32_OVERRIDE", "")
    # Nothing here uses NumPy; a torch without it warns at its first tensor.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    try:
        import torch
    except ImportError as exc:
        if isinstance(exc, ModuleNotFoundError) and exc.name == "torch":
            text = f"no torch in {sys.executable}: install it there, or run the probe with a Python that has it"
        else:
            text = f"torch of {sys.executable} cannot be imported: {exc}"
        raise UnavailableError(text) from None
    except OSError as exc:
        raise UnavailableError(f"torch of {sys.executable} cannot be loaded: {exc}") from None
    if not hasattr(torch, "__version__") or not hasattr(torch, "tensor"):
        where = getattr(torch, "__file__", None) or "a folder named torch"
        raise UnavailableError(f"torch of {sys.executable} is not PyTorch ({where}): remove or rename it")
    if overridden:
        print(f"NVIDIA_TF32_OVERRIDE={overridden} is ignored: the probe sets TF32 itself", file=sys.stderr)
    return torch


def open_target(torch: Any, name: str) -> Target:
    """The device called ``name`` ("cpu", "cuda", "cuda:1"), made current. Raises UnavailableError."""
    if name == "cpu":
        return Target(torch, torch.device("cpu"), False, "", cpu_name(), 0, 0, 0, host_memory.cpu_cache_bytes())
    if not torch.backends.cuda.is_built():
        raise UnavailableError(f"torch {torch.__version__} has no CUDA: use --device cpu or a CUDA build of torch")
    if not torch.cuda.is_available():
        raise UnavailableError(
            f"torch {torch.__version__} sees no CUDA device: check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    index = int(name.partition(":")[2] or 0)
    count = torch.cuda.device_count()
    if index >= count:
        raise UnavailableError(f"no {name}: torch sees {count} device(s), cuda:0 to cuda:{count - 1}")
    try:
        torch.cuda.set_device(index)
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as exc:
        text = str(exc).strip().splitlines()[0]
        if "out of memory" in text or "busy" in text:
            raise BusyError(f"{name} cannot be opened: {text}") from None
        raise UnavailableError(f"{name} cannot be opened: {text}") from None
    uuid = device_uuid(properties, index)
    device = torch.device("cuda", index)
    l2_bytes = int(getattr(properties, "L2_cache_size", 0))
    return Target(torch, device, True, uuid, properties.name, free, total, properties.major, l2_bytes)


def device_uuid(properties: Any, index: int) -> str:
    """The GPU's UUID as NVML writes it; from CUDA_VISIBLE_DEVICES for a torch that does not tell; else ""."""
    told = str(getattr(properties, "uuid", "") or "")
    if told:
        return told if told.startswith(("GPU-", "MIG-")) else "GPU-" + told
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    entry = visible[index].strip() if index < len(visible) else ""
    return entry if entry.startswith(("GPU-", "MIG-")) else ""


def cpu_name() -> str:
    """Model name of the CPU, from /proc/cpuinfo where there is one."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cache_state(pass_bytes: int, buffers: int, cache_bytes: int) -> str:
    """Whether a pass over ``pass_bytes``, with ``buffers`` sets in turn, comes from memory.

    "cold": one set is eight caches large. "rotating": all sets together are. "warm": it may come from the cache, and
    a figure is the cache's (llm.c PR#851 had 3530 GB/s of a card that has 714). "unknown": the cache's size is.
    """
    if not cache_bytes:
        return "unknown"
    if pass_bytes >= CACHES * cache_bytes:
        return "cold"
    return "rotating" if buffers > 1 and pass_bytes * buffers >= CACHES * cache_bytes else "warm"


def is_out_of_memory(exc: BaseException) -> bool:
    """Whether this is torch's, CUDA's or Python's way of saying that memory is used up."""
    return isinstance(exc, MemoryError) or "out of memory" in str(exc) or "can't allocate memory" in str(exc)


def release(target: Target) -> None:
    """Give freed memory back to the device: the next case, or a neighbour, may need it."""
    gc.collect()
    if target.is_cuda:
        target.torch.cuda.empty_cache()


def host_random_bytes(torch: Any, count: int, seed: int, pin: bool = False) -> Any:
    """``count`` uniform random bytes in host memory; they repeat after 16 MiB, farther than any link looks back."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    base = torch.randint(0, 256, (min(count, 16 * 1024**2),), dtype=torch.uint8, generator=generator)
    values = base.repeat(-(-count // base.numel()))[:count]
    return values.pin_memory() if pin else values


def require_memory(target: Target, need_bytes: int) -> None:
    """Raise when ``need_bytes`` do not fit: BusyError when they would in an empty GPU, else UnavailableError."""
    if not target.is_cuda or need_bytes <= target.free_bytes:
        return
    free, total = target.free_bytes / GIB, target.total_bytes / GIB
    figures = f"needs {need_bytes / GIB:.1f} GiB, {free:.1f} of {total:.1f} GiB are free"
    # A context and the driver's own share take up to about 1 GiB of an empty GPU.
    if need_bytes <= target.total_bytes - GIB:
        raise BusyError(f"somebody else's memory is in the way: the probe {figures}")
    raise UnavailableError(f"the GPU is too small: the probe {figures}; use a smaller --size")


def set_tf32(torch: Any, on: bool) -> dict[str, str]:
    """Switch TF32 for matmul and convolution, by whichever interface this torch has, and read both back.

    torch 2.9 and newer have ``fp32_precision`` and refuse to answer the older questions, which torch.compile asks,
    after one interface alone: so both are set, and they agree.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(matmul, "fp32_precision") and hasattr(getattr(cudnn, "conv", None), "fp32_precision"):
        torch.set_float32_matmul_precision("high" if on else "highest")
        matmul.fp32_precision = cudnn.conv.fp32_precision = "tf32" if on else "ieee"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the older interface is deprecated, and still asked
            cudnn.allow_tf32 = on
        told = {"matmul_fp32": str(matmul.fp32_precision), "conv_fp32": str(cudnn.conv.fp32_precision)}
        # The older interface leaves "none" behind it when it switches TF32 off: nothing but IEEE then.
        return {name: "ieee" if precision == "none" and not on else precision for name, precision in told.items()}
    matmul.allow_tf32 = cudnn.allow_tf32 = on
    names = {True: "tf32", False: "ieee"}
    return {"matmul_fp32": names[bool(matmul.allow_tf32)], "conv_fp32": names[bool(cudnn.allow_tf32)]}


def describe(report: Report, target: Target, clock_name: str) -> None:
    """Pin the cuDNN switches; put versions, switches and admission facts into the report, all as read back."""
    torch = target.torch
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.deterministic = False
    report.device_name = target.name
    report.device_uuid = target.uuid
    settings = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or "none"),
        "cudnn": str(torch.backends.cudnn.version() or "none"),
        "cudnn_benchmark": str(bool(torch.backends.cudnn.benchmark)).lower(),
        "cudnn_deterministic": str(bool(torch.backends.cudnn.deterministic)).lower(),
        "timer": clock_name,
        "cpus": str(usable_cpus()),
    }
    if target.is_cuda:
        settings["mem_free_bytes"] = str(target.free_bytes)
        settings["mem_total_bytes"] = str(target.total_bytes)
        matmul = torch.backends.cuda.matmul
        for kind in ("fp16", "bf16"):
            switch = f"allow_{kind}_reduced_precision_reduction"
            settings[switch] = str(getattr(matmul, switch, "unknown")).lower()
    else:
        settings["threads"] = str(torch.get_num_threads())
    report.settings.update(settings)


def usable_cpus() -> int:
    """CPUs that this process may use: affinity, and the cgroup's quota where it is smaller (at least 1)."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(Path("/sys/fs/cgroup"))
    return max(1, min(cpus, int(quota))) if quota else cpus


def cpu_quota(root: Path) -> float:
    """Cores that the cgroup at ``root`` (v2, or v1 below it) may use; 0.0 when no limit is set or readable."""
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            words = " ".join((root / name).read_text(encoding="ascii") for name in files).split()
            return max(0.0, int(words[0]) / int(words[1]))
        except (OSError, ValueError, IndexError, ZeroDivisionError):
            continue  # "max" is no number: no limit
    return 0.0
