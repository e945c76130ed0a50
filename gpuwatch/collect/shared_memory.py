"""Memory in use on a GPU that has none of its own to count: the sum over its processes.

Owns: that sum. Refuses: deciding which GPUs these are (nvml_identity). Pure.
"""

from __future__ import annotations

import msgspec

from gpuwatch.model import Absent, DeviceSample


def with_shared_memory(sample: DeviceSample) -> DeviceSample:
    """The sample with what its processes hold as memory in use, when NVML gives no figure and lists processes.

    The host's own use is no answer: it counts programs that never touched the GPU.
    """
    if not isinstance(sample.mem_used_bytes, Absent) or sample.processes_absent is not None:
        return sample
    held = [p.mem_used_bytes for p in sample.processes if not isinstance(p.mem_used_bytes, Absent)]
    if sample.processes and not held:
        return sample
    return msgspec.structs.replace(sample, mem_used_bytes=sum(held))
