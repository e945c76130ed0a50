"""What the text of a line of code says about the C code that it calls.

Owns: these patterns. Refuses: frames, and lines that may do anything: native frames must tell those apart.
"""

from __future__ import annotations

import re

from gpuwatch.diagnose.activity import Activity

_READS_A_TENSOR = re.compile(
    r"\.item\(|\.cpu\(|synchronize\(|\.nonzero\(|\.to\(\s*[\"']cpu|\btorch\.(isnan|isinf|isfinite|nonzero|unique|equal|"
    r"allclose)\b|block_until_ready"
)
_MAY_READ_ONE = re.compile(
    r"\.tolist\(|\.numpy\(|\bisnan\b|\bisinf\b|\bisfinite\b|\.any\(\)|\.all\(\)|\bbool\(|\bprint\(|\bfloat\(|\bint\("
)
"""Of a tensor on the GPU these wait for it; of an array or a number they compute."""
_LOGS = re.compile(
    r"\bfsync\(|\.write(lines|_text|_bytes)?\(|\bprint\(|json\.dumps?\(|\.savefig\(|\bimwrite\(|"
    r"\.add_(scalar|image|histogram|figure)s?\(|\blog(ger|ging)?\.(debug|info|warning|log)\("
)
_ALLOCATES = re.compile(r"\bempty_cache\(")
_COLLECTS = re.compile(r"\bgc\.collect\(")
_COPIES = re.compile(
    r"\.cuda\(|\.to\((?!\s*torch\.(float|half|bfloat|int|long|double))|\.copy_\(|from_numpy\(|to_device"
)
_ON_THE_CPU = re.compile(
    r"\b(np|numpy|scipy|cv2|pd|pandas|pl|polars|random|re|math|statistics|Image|ImageOps|skimage)\."
)
"""The usual names of libraries that only compute on the CPU."""
_TENSORS = re.compile(r"\b(torch|F|nn|self\.(model|net))\.|\bmodel\(|\bjax\.|\bjnp\.|\bcp\.")


def line_activity(text: str, *, active: bool) -> tuple[Activity, bool]:
    """What a line that calls C does, and whether its text leaves no doubt. Waiting for the GPU spins or sleeps, so
    ``active`` does not decide for that. "" is a line that nobody could read."""
    code = text.split("#", 1)[0]
    if _ALLOCATES.search(code):
        return Activity.ALLOCATING, True
    if _COLLECTS.search(code):
        return Activity.COLLECTING, True
    if _LOGS.search(code) and ".item(" not in code:
        return Activity.LOGGING, True
    if _READS_A_TENSOR.search(code) and "torch.tensor(" not in code:
        return Activity.SYNCHRONISING, True
    if active and _ON_THE_CPU.search(code) and not _TENSORS.search(code):
        return Activity.HOST_WORK, True
    if _MAY_READ_ONE.search(code) and "torch.tensor(" not in code:
        return Activity.SYNCHRONISING, False
    if _COPIES.search(code):
        return Activity.COPYING, True
    return (Activity.USER_LINE, False) if active else (Activity.WAITING, True)


_CALL = re.compile(r"(\.?\w+)\(")
_COPY_CALLS = frozenset({".to", ".cuda", ".copy_", ".non_blocking", ".pin_memory"})


def only_copies(text: str) -> bool:
    """Whether a line of code calls nothing but copies."""
    calls = _CALL.findall(text.split("#", 1)[0])
    return bool(calls) and all(call in _COPY_CALLS for call in calls)
