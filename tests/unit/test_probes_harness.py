"""Timing: against a simulated GPU whose work finishes only later, and the right result of a probe's arithmetic."""

from __future__ import annotations

import ast
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakegpu.simulated import SimulatedGpu

from probes import clocks, conv, dataloader, device, harness, images, matmul, verify
from probes.report import Report

torch = device.load_torch()
FOLDER = Path(matmul.__file__).parent
KERNEL_MS = 1.0


def test_an_asynchronous_device_is_timed_by_its_work_not_by_the_enqueueing() -> None:
    gpu = SimulatedGpu()
    clock = clocks.CudaClock(gpu.torch, "cuda:0")
    samples = harness.series(clock, gpu.work, 5, lambda seen: len(seen) >= 8)
    assert samples == pytest.approx([KERNEL_MS] * 8)
    assert set(gpu.streams) == {"current"}


def test_leaving_a_busy_gpu_is_quick_because_little_is_queued() -> None:
    gpu = SimulatedGpu()
    clock = clocks.CudaClock(gpu.torch, "cuda:0")
    inner = harness.calibrate(clock, gpu.work)
    harness.series(clock, gpu.work, inner, lambda seen: len(seen) >= 20)
    assert inner <= 5
    assert gpu.most_queued_ms <= 2 * harness.SAMPLE_MS + 3 * KERNEL_MS
    assert gpu.cpu_ms >= gpu.free_at_ms, "the series must leave nothing behind"


def test_a_short_kernel_is_repeated_until_a_sample_can_be_timed() -> None:
    ticks = iter(range(10**9))

    class Clock(clocks.CpuClock):
        def mark(self) -> Any:
            return next(ticks) * 1000 + self.spent

        spent = 0

    clock = Clock()

    def work() -> None:
        clock.spent += 2_000  # 2 µs

    inner = harness.calibrate(clock, work)
    assert 0.5 <= inner * 0.002 <= 10


def test_the_first_call_stays_out_of_the_samples() -> None:
    calls = 0

    class Clock(clocks.CpuClock):
        now = 0

        def mark(self) -> Any:
            return self.now

    clock = Clock()

    def work() -> None:
        nonlocal calls
        calls += 1
        clock.now += 1_000_000_000 if calls == 1 else 1_000_000

    timing = harness.time_case(clock, work, harness.Budget(0.0, 0.0, 0.0), lambda _text: None)
    assert timing.sustained_ms == [1.0]
    assert timing.burst_ms == [1.0]
    assert not timing.stationary


def test_measuring_ends_once_the_median_is_known() -> None:
    finished = harness.enough(1e9)
    assert not finished([1.0] * 29)
    assert harness.enough(0.0)([1.0])
    assert harness.enough(1e9)([1.0 + index for index in range(harness.MOST_N)])


def test_random_inputs_multiply_right() -> None:
    left, right = torch.randn(64, 64), torch.randn(64, 64)
    assert verify.product_error(torch, left, right, left @ right) < verify.PRODUCT_TOLERANCE["fp32"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda product: product[3].zero_(),
        lambda product: product[:8, :8].neg_(),
        lambda product: product.fill_(math.nan),
        lambda product: product.zero_(),
        lambda product: product.copy_(product.half().float()),
    ],
    ids=["row", "tile", "nan", "skipped", "precision"],
)
def test_a_wrong_product_is_caught(damage: Callable[[Any], Any]) -> None:
    left, right = torch.randn(64, 64), torch.randn(64, 64)
    product = left @ right
    damage(product)
    error = verify.product_error(torch, left, right, product)
    assert verify.wrong("fp32", error, verify.PRODUCT_TOLERANCE["fp32"])


def test_bf16_rounding_is_not_called_wrong() -> None:
    left, right = torch.randn(512, 512).bfloat16(), torch.randn(512, 512).bfloat16()
    error = verify.product_error(torch, left, right, left @ right)
    assert 1e-3 < error < verify.PRODUCT_TOLERANCE["bf16"]


def test_tf32_left_on_in_the_fp32_case_is_caught() -> None:
    def rounded(values: Any) -> Any:  # to TF32's 10 bits of mantissa
        return ((values.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    error = verify.product_error(torch, left, right, rounded(left) @ rounded(right))
    assert verify.PRODUCT_TOLERANCE["fp32"] < error < verify.PRODUCT_TOLERANCE["tf32"]


@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_a_convolution_is_checked_at_its_padded_edge(layout: str) -> None:
    image, weight, _ = conv.tensors(_cpu(), conv.Case("fp32", layout, False), conv.Shape(2, 8, 24, 20))
    output = conv.convolve(torch, image, weight)
    assert verify.convolution_error(torch, image, weight, output) < verify.CONV_TOLERANCE["fp32"]
    output[-1, 2, 23, 19] += 1.0
    assert verify.convolution_error(torch, image, weight, output) > verify.CONV_TOLERANCE["fp32"]


def test_a_missing_gradient_is_caught() -> None:
    image, weight, _ = conv.tensors(_cpu(), conv.Case("fp32", "nchw", True), conv.Shape(2, 8, 16, 16))
    output = conv.convolve(torch, image, weight)
    gradients = torch.autograd.grad(output, (image, weight), output.detach())
    parts = (image.detach(), weight.detach(), output.detach())
    assert verify.gradient_error(torch, *parts, gradients) < verify.GRADIENT_TOLERANCE["fp32"]
    for broken in (
        (gradients[0], gradients[1] * 0),
        (gradients[0] * 2, gradients[1]),
        (gradients[0], gradients[1] / 0),
    ):
        assert verify.gradient_error(torch, *parts, broken) > verify.GRADIENT_TOLERANCE["fp32"]


def test_a_probe_with_a_broken_kernel_reports_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "multiply", lambda torch, left, right, out: torch.mm(left, right.t(), out=out))
    report = Report("matmul", "cpu")
    matmul.run(_cpu(), clocks.CpuClock(), report, 0.01, "32", lambda _text: None)
    assert report.finish()["status"] == "invalid"
    assert "fp32_32: wrong result" in str(report.finish()["message"])


def test_a_kernel_that_did_nothing_is_not_fast_but_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "multiply", lambda torch, left, right, out: out)
    report = Report("matmul", "cpu")
    matmul.run(_cpu(), clocks.CpuClock(), report, 0.01, "32", lambda _text: None)
    assert report.finish()["status"] == "invalid"


def test_a_loader_that_mixes_up_items_is_invalid() -> None:
    dataset = images.SyntheticImages(16, jpeg=False)
    good = torch.stack([dataset[index] for index in range(dataloader.BATCH)])
    report = Report("dataloader", "cpu")
    dataloader.check_batch(torch, report, dataset, good, 2)
    assert report.problems == []
    dataloader.check_batch(torch, report, dataset, good.flip(0), 2)
    assert report.problems == ["workers_2: the first batch is not what the dataset holds"]


def test_the_dataset_travels_to_workers_however_they_are_started() -> None:
    dataset = images.SyntheticImages(16, jpeg=images.have_pillow())
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[3], dataset[3])
    assert dataset[3].shape == (3, 16, 16)
    assert not torch.equal(dataset[3], dataset[4])


def test_workers_are_forked_whatever_pythons_default_is() -> None:
    loader = dataloader.make_loader(torch, images.SyntheticImages(16, jpeg=False), 2, pin=False)
    assert loader.multiprocessing_context.get_start_method() == "fork"


def test_tf32_is_pinned_through_the_interface_that_this_torch_has() -> None:
    legacy = SimpleNamespace(
        backends=SimpleNamespace(
            cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=True)), cudnn=SimpleNamespace(allow_tf32=True)
        )
    )
    assert device.set_tf32(legacy, False) == {"matmul_fp32": "ieee", "conv_fp32": "ieee"}
    assert device.set_tf32(legacy, True) == {"matmul_fp32": "tf32", "conv_fp32": "tf32"}
    assert device.set_tf32(torch, True)["matmul_fp32"] == "tf32"
    assert device.set_tf32(torch, False) == {"matmul_fp32": "ieee", "conv_fp32": "ieee"}


def test_flops_are_counted_as_published() -> None:
    assert conv.flop(conv.Shape(16, 64, 224, 224), train=False) == 2 * 16 * 64 * 64 * 9 * 224 * 224
    assert conv.flop(conv.Shape(16, 64, 224, 224), train=True) == 3 * conv.flop(conv.Shape(16, 64, 224, 224), False)
    assert [case.name for case in matmul.cases(True, ())] == [
        *("bf16_8192", "fp16_8192", "tf32_8192", "fp32_4096", "fp64_4096", "fp8_8192")
    ]


def test_the_memory_of_a_probe_is_bounded() -> None:
    assert matmul.need_bytes(matmul.Case("tf32", 8192)) < 2 * 1024**3
    assert conv.need_bytes(conv.Shape(16, 64, 224, 224)) < 4 * 1024**3


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_probes_run_on_python_38_and_need_only_torch(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    allowed = {"torch", "PIL", "__future__", "collections", "argparse", "importlib", "io", "json", "math", "os"}
    allowed |= {"concurrent", "contextlib", "ctypes", "datetime", "gc", "mmap", "queue", "shutil", "subprocess"}
    allowed |= {"fcntl", "signal", "stat", "tempfile", "zlib"}
    allowed |= {"pathlib", "platform", "random", "re", "sys", "time", "types", "typing", "warnings"}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [str(node.module)]
        assert {name.split(".")[0] for name in names} <= allowed
    assert not _runtime_subscripts(tree), "list[int] outside of annotations needs Python 3.9"


def _runtime_subscripts(tree: ast.AST) -> list[int]:
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if isinstance(getattr(node, field, None), ast.AST)
        for inner in ast.walk(getattr(node, field))
    }
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    generic = {"list", "dict", "tuple", "set", "Callable", "Sequence"}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in generic
        and id(node) not in annotations | guarded
    ]


def _cpu() -> device.Target:
    return device.open_target(torch, "cpu")
