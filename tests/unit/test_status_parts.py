"""``gpuwatch status`` on a GPU that is a part of another, and on one that has no memory of its own."""

from __future__ import annotations

from gpuwatch.export.reading import NodeView
from gpuwatch.export.text import status_lines
from gpuwatch.model import Device, DeviceSample, Inventory, NodeInfo

NODE = NodeInfo("gpu-7", "6.8.0", "boot", 20, 128 << 30, "580.82.07", "13.0")


def test_memory_of_the_machine_is_not_passed_off_as_the_gpus_own() -> None:
    gb10 = Device(0, "GPU-a", "NVIDIA GB10", "", mem_total_bytes=128 << 30, mem_shared_with_host=True)
    lines = status_lines(NodeView(Inventory(NODE, (gb10,)), {0: DeviceSample(0, 1, mem_used_bytes=8 << 30)}))
    assert any("8.0 GiB/128 GiB" in line for line in lines)
    assert "GPU 0: memory is the machine's, shared with the CPU" in lines


def test_a_mig_instance_is_shown_by_its_profile() -> None:
    name = "NVIDIA H200 MIG 1g.18gb"
    mig = Device(100, "MIG-a", name, "", parent_uuid="GPU-a", mig_profile="1g.18gb")
    lines = status_lines(NodeView(Inventory(NODE, (mig,)), {100: DeviceSample(100, 1)}))
    assert any(line.startswith("100 MIG 1g.18gb ") for line in lines)
