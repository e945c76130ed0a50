"""The probes' arithmetic with real torch on the CPU: damage, zeros and missing work are found, sound work is not."""

from __future__ import annotations

import importlib
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes import (
    allreduce,
    attention,
    clocks,
    command,
    copies,
    device,
    disk,
    inference,
    matmul,
    memory,
    shm,
    steps,
    storage,
    train,
    verify,
)
from probes.report import Report, UnavailableError

torch = device.load_torch()
models = importlib.import_module("probes.models")
QUIET = lambda _text: None  # noqa: E731 (progress is not the subject)


def cpu() -> device.Target:
    return device.open_target(torch, "cpu")


def run(probe: Any, size: str, seconds: float = 0.01, **settings: str) -> dict[str, Any]:
    report = Report(probe.NAME, "cpu")
    report.settings.update(settings)
    # Without a cache to get past, small arrays do.
    probe.run(cpu()._replace(cache_bytes=0), clocks.CpuClock(), report, seconds, size, QUIET)
    return report.finish()


def test_a_clock_that_does_not_see_the_work_spoils_every_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "self_test", lambda clock: "the events read 0.01 ms of 10.00 ms of work")
    options = command.parse(["matmul", "--device", "cpu", "--size", "32", "--seconds", "0.01"])
    result = command.run(options)
    assert (result["status"], result["message"]) == ("invalid", "the events read 0.01 ms of 10.00 ms of work")


# --------------------------------------------------------------------------- data


def test_zeros_are_not_measured() -> None:
    assert verify.dull(torch, torch.zeros(64, 64))
    assert verify.dull(torch, torch.ones(10_000, dtype=torch.uint8))
    assert not verify.dull(torch, torch.randn(64, 64))
    assert not verify.dull(torch, torch.randint(0, 256, (10_000,), dtype=torch.uint8))


def test_a_probe_fed_with_zeros_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros(32, 32)
    monkeypatch.setattr(matmul, "operands", lambda target, case: (zeros, zeros, zeros.clone()))
    assert "the inputs are no random data" in run(matmul, "32")["message"]
    monkeypatch.setattr(device, "host_random_bytes", lambda torch, count, seed, pin=False: torch.zeros(count).byte())
    assert "the source holds no random data" in run(copies, "4")["message"]


@pytest.mark.parametrize("kind", ["fp32", "fp64"])
def test_inputs_hold_no_denormals_which_a_cpu_multiplies_forty_times_slower(kind: str) -> None:
    left, right, _ = matmul.operands(cpu(), matmul.Case(kind, 256))
    tiny = torch.finfo(left.dtype).tiny
    for values in (left, right, left @ right):
        assert int(((values != 0) & (values.abs() < tiny)).sum()) == 0


# --------------------------------------------------------------------------- memory and copies


@pytest.mark.parametrize("case", [case.name for case in memory.CASES])
def test_memory_that_returns_one_wrong_element_is_found(case: str) -> None:
    left, right, row, out = memory.arrays(cpu(), 1)
    written = memory.work_on(torch, case, left, right, row, out).clone()
    assert memory.wrong_elements(torch, case, left, right, row, written) == 0
    written[7, 5] += 0.5
    written[9, 9] = math.nan
    assert memory.wrong_elements(torch, case, left, right, row, written) == 2


def test_a_stuck_bit_is_found_by_the_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.empty(8, 1024)
    assert memory.pattern_errors(torch, [tensor]) == 0
    store = torch.Tensor.copy_

    def stuck(self: Any, source: Any) -> Any:
        store(self, source)
        self[2, 3] |= 16
        return self

    monkeypatch.setattr(torch.Tensor, "copy_", stuck)
    # Once the bit was set anyway, once it was not: pattern and complement together cannot miss it.
    assert memory.pattern_errors(torch, [tensor]) == 1


def test_memory_work_that_was_skipped_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "work_on", lambda torch, case, left, right, row, out: out)
    result = run(memory, "1")
    assert result["status"] == "invalid"
    assert "copy: 262144 element(s) are wrong" in result["message"]


def test_a_cached_array_is_not_reported_as_memory_bandwidth() -> None:
    report = Report("memory", "cpu")
    target = cpu()._replace(cache_bytes=1 << 40)
    memory.run(target, clocks.CpuClock(), report, 0.01, "1", QUIET)
    assert [value["name"] for value in report.values] == [f"{case.name}_in_cache" for case in memory.CASES]
    assert report.settings["copy_l2"] == "warm"
    assert any("this is not the memory's bandwidth" in note for note in report.notes)


def test_a_copy_that_arrives_damaged_is_found() -> None:
    tensors = copies.buffers(cpu(), copies.Case("host", "pageable", 4096))
    copies.copier(cpu(), copies.Case("host", "pageable", 4096), tensors)()
    assert copies.damaged_bytes(torch, tensors) == 0
    tensors[1][100:103] ^= 1
    assert copies.damaged_bytes(torch, tensors) == 3


def test_copies_are_named_by_way_memory_and_size() -> None:
    names = [case.name for case in copies.cases(True, [4096, 256 << 20])]
    assert names[:4] == ["h2d_pinned_4KiB", "d2h_pinned_4KiB", "h2d_pageable_4KiB", "d2h_pageable_4KiB"]
    assert names[-1] == "bidir_pinned_256MiB"
    assert "bidir_pinned_4KiB" not in names


# --------------------------------------------------------------------------- attention, inference, training


def test_wrong_attention_and_a_missing_gradient_are_found() -> None:
    query, key, value, above = attention.tensors(cpu(), attention.Shape(2, 2, 32), "fp32")
    inputs = tuple(tensor.requires_grad_(True) for tensor in (query, key, value))
    output = attention.attend(torch, *inputs)
    gradients = torch.autograd.grad(output, inputs, above)

    def error(found: Any, pulled: Any) -> float:
        return attention.attention_error(torch, inputs, above, found, pulled)

    assert error(output, gradients) < attention.TOLERANCE["fp32"]
    assert error(output * 1.01, gradients) > attention.TOLERANCE["fp32"]
    assert error(output, (gradients[0], gradients[1], gradients[2] * 0)) > attention.TOLERANCE["fp32"]
    assert error(output * math.nan, gradients) == math.inf


def test_gradients_that_must_be_zero_are_right_when_they_are() -> None:
    query, key, value, above = attention.tensors(cpu(), attention.Shape(1, 1, 1), "fp32")
    inputs = tuple(tensor.requires_grad_(True) for tensor in (query, key, value))
    output = attention.attend(torch, *inputs)
    pulled = torch.autograd.grad(output, inputs, above)
    right = attention.attention_error(torch, inputs, above, output, pulled)
    assert right < attention.TOLERANCE["fp32"], "over one position the weights are 1 whatever query and key are"
    wrong = attention.attention_error(torch, inputs, above, output, (pulled[0], pulled[1] + 0.1, pulled[2]))
    assert wrong > attention.TOLERANCE["fp32"]


def test_a_back_end_that_is_not_there_is_noted_and_other_errors_are_not() -> None:
    assert "No available kernel" in attention.unavailable(RuntimeError("No available kernel. Aborting execution."))
    assert attention.unavailable(RuntimeError("CUDA out of memory.")) == "it does not fit in memory"
    assert attention.unavailable(RuntimeError("CUDA error: illegal memory access")) == ""
    old = SimpleNamespace(nn=SimpleNamespace())
    with pytest.raises(UnavailableError):
        attention.chosen(old, "cudnn")


def test_the_networks_have_their_published_sizes() -> None:
    assert models.parameters(models.resnet50()) == 25_557_032
    with torch.device("meta"):
        assert 109e6 < models.parameters(models.BertClassifier()) < 110e6


def test_inference_with_gradients_left_on_is_named() -> None:
    model = torch.nn.Linear(4, 2).eval()
    images = torch.randn(2, 4)
    case = inference.Case("fp32", "no_grad", 2)
    good = inference.forward(torch, model, images, case)
    assert inference.output_problem(torch, model, images, case, good) == ""
    assert "gradients were recorded" in inference.output_problem(torch, model, images, case, model(images))
    assert "wrong result" in inference.output_problem(torch, model, images, case, good + 1.0)


def trained(monkeypatch: pytest.MonkeyPatch, **spoilt: Any) -> dict[str, Any]:
    """A result of the tiny network; the second case is fp32 again, spoilt as told."""
    make = steps.make_step
    wanted = train.Case("again")
    monkeypatch.setattr(train, "cases", lambda target, setup, report: [train.FP32, wanted])

    def made(target: Any, setup: Any, case: Any) -> Any:
        step = make(target, setup, case)
        for name, value in spoilt.items() if case is wanted else ():
            setattr(step, name, value)
        return step

    monkeypatch.setattr(steps, "make_step", made)
    return run(train, "tiny:8x8")


def test_the_cpu_is_the_first_row_once_and_in_units_of_the_gpus_fp32() -> None:
    setup = train.Setup("tiny", 64, 8)
    report = Report("train", "cuda:0")
    for _twice in range(2):
        train._cpu_row(cpu(), report, setup, 0.01, QUIET)
        train._cpu_speedup(report, setup, 2000.0)
    rate, speedup = report.values
    assert (rate["name"], rate["unit"]) == ("tiny_b2_8_cpu", "sequences/s")
    assert speedup["name"] == "tiny_b2_8_cpu_speedup"
    assert speedup["median"] == pytest.approx(float(str(rate["median"])) / 2000.0)


def test_training_that_computes_something_else_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained(monkeypatch)["status"] == "ok"
    for spoilt, says in (
        ({"losses": lambda: [5.0]}, "first loss 5.0000"),
        ({"losses": lambda: [0.7, math.nan]}, "a loss is not finite"),
        ({"run": lambda: None, "losses": lambda: [0.7]}, "the step did not change the weights"),
    ):
        monkeypatch.undo()
        result = trained(monkeypatch, **spoilt)
        assert result["status"] == "invalid"
        assert says in result["message"]


def test_a_batch_that_does_not_fit_is_halved_and_never_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    make = steps.make_step

    def tight(target: Any, setup: Any, case: Any) -> Any:
        if setup.batch > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return make(target, setup, case)

    monkeypatch.setattr(steps, "make_step", tight)
    result = run(train, "tiny:8x8")
    assert result["status"] == "ok"
    assert result["values"][0]["name"] == "tiny_b2_8_fp32"
    assert result["notes"][:2] == [
        "tiny_b8_8 does not fit in memory: half the batch instead",
        "tiny_b4_8 does not fit in memory: half the batch instead",
    ]
    monkeypatch.setattr(steps, "make_step", lambda *_args: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(UnavailableError, match="not even a batch of one fits"):
        run(train, "tiny:8x8")


def test_the_batch_that_fills_a_gpu_can_be_asked_for_alone_and_needs_a_gpu() -> None:
    assert train.parse_size("bert:fillx128,resnet50:2x32") == [
        train.Setup("bert", train.FILL, 128),
        train.Setup("resnet50", 2, 32),
    ]
    with pytest.raises(ValueError, match="bert:fillx128 takes the batch that fills the GPU"):
        train.parse_size("resnet50:fillx224")
    with pytest.raises(UnavailableError, match="for a GPU: name a batch"):
        run(train, "bert:fillx8")


def test_the_batch_that_fills_a_gpu_leaves_a_fifth_of_it() -> None:
    gib = 1 << 30
    assert train.batch_for(4 * gib, 5 * gib, 140 * gib) == 512
    assert train.batch_for(4 * gib, 5 * gib, 40 * gib) == 128
    assert train.batch_for(4 * gib, 5 * gib, 5 * gib) == 8


def test_without_a_compiler_compiling_is_not_available_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _tool: None)
    assert steps.compile_obstacle(torch, True) == "no C compiler: install gcc or set CC"
    assert steps.compile_obstacle(SimpleNamespace(), True) == "this torch has no torch.compile"
    report = Report("train", "cuda:0")
    target = device.Target(torch, "cuda:0", True, "", "", 0, 0, 9)
    names = [case.name for case in train.cases(target, train.Setup("bert", 8, 128), report)]
    assert names == ["fp32", "tf32", "amp"]
    assert report.notes == ["bert amp_compile is not available: no C compiler: install gcc or set CC"]


def test_compiling_starts_with_an_empty_cache_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/var/cache/mine")
    with steps.empty_compile_caches() as folder:
        assert os.environ["TRITON_CACHE_DIR"].startswith(folder)
        assert not Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).exists()
    assert os.environ["TRITON_CACHE_DIR"] == "/var/cache/mine"
    assert not Path(folder).exists()


# --------------------------------------------------------------------------- disk, shared memory, ranks


def test_a_file_that_is_in_the_page_cache_is_told_from_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "file"
    checks, _ = disk.write_random(path, 2)
    with disk.CachedReader(path, disk.MIB) as reader:
        for index in range(len(checks)):
            reader.read(index)
        assert reader.resident_share() == 1.0
        if disk.file_system(tmp_path) not in storage.MEMORY_FILE_SYSTEMS:
            reader.evict()
            assert reader.resident_share() < storage.CACHED_LIMIT


def test_what_could_not_be_evicted_is_not_called_the_disk() -> None:
    report = Report("storage", "cpu")
    assert storage.cache_suffix(report, "sequential", 0.04) == ""
    assert storage.cache_suffix(report, "small_files", 1.0) == "_in_cache"
    assert report.notes == ["small_files: 100% is still in the page cache after eviction: this is not the disk"]


def test_a_block_that_is_not_what_was_written_is_found(tmp_path: Path) -> None:
    path = tmp_path / "file"
    checks, _ = disk.write_random(path, 2)
    report = Report("storage", "cpu")
    with disk.CachedReader(path, disk.MIB) as reader:
        storage._sequential(report, reader, checks, 0.01, cold=False)
        assert report.problems == []
        storage._sequential(report, reader, [checks[0], checks[1] ^ 1], 0.01, cold=False)
    assert report.problems == ["sequential: block 1 is not what was written"]


def test_a_disk_test_does_not_fill_the_disk_or_measure_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "file_system", lambda folder: "ext4")
    monkeypatch.setattr(disk, "free_bytes", lambda folder: 100 * disk.MIB)
    with pytest.raises(UnavailableError, match="use a smaller --size or another --path"):
        run(storage, "64", path=str(tmp_path))
    monkeypatch.setattr(disk, "file_system", lambda folder: "tmpfs")
    with pytest.raises(UnavailableError, match="is in memory"):
        run(storage, "1", path=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_shared_memory_that_is_too_small_is_noted_before_a_bus_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "capacity", lambda: (64 << 20, 64 << 20))
    monkeypatch.setattr(shm, "copy_rates", lambda *_args: [1.0])
    result = run(shm, "37888")
    assert [value["name"] for value in result["values"]] == ["shm_total", "copy_37MiB"]
    assert result["notes"] == ["transfer_37MiB is not available: shared memory (/dev/shm) is too small for it"]


def test_repeated_sums_stay_finite_and_exact() -> None:
    one, two = (allreduce.fill(torch, cpu(), rank, 64) for rank in (0, 1))
    assert allreduce.wrong_elements(torch, cpu(), "all_reduce", one + two, 2) == 0
    assert allreduce.wrong_elements(torch, cpu(), "all_reduce", one + two + two, 2) > 32
    gathered = torch.cat([allreduce.fill(torch, cpu(), rank, 32) for rank in (0, 1)])
    assert allreduce.wrong_elements(torch, cpu(), "all_gather", gathered, 2) == 0
    assert allreduce.wrong_elements(torch, cpu(), "all_gather", gathered.flip(0), 2) > 32
    assert allreduce.wrong_elements(torch, cpu(), "send_recv", one, 2, sender=0) == 0
    assert allreduce.wrong_elements(torch, cpu(), "send_recv", one, 2, sender=1) > 32


def test_bus_bandwidth_is_counted_as_others_count_it() -> None:
    assert allreduce.bus_factor("all_reduce", 8) == 1.75
    assert allreduce.bus_factor("all_gather", 8) == 0.875
    assert allreduce.bus_factor("send_recv", 8) == 1.0
    assert allreduce.own_rank({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == allreduce.Ranks(3, 8, 1)
    assert allreduce.own_rank({"RANK": "first", "WORLD_SIZE": "8"}) is None
    assert allreduce.own_rank({}) is None
