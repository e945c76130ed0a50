"""Readings through the C ABI: a value or the reason, never a wrong number."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakenvml.build import Fake, loaded

from gpuwatch.collect.nvml import Nvml
from gpuwatch.collect.nvml_fields import GPM_METRICS, READING_FIELDS
from gpuwatch.collect.nvml_reader import DeviceReader
from gpuwatch.model import NOT_READ, NOT_SUPPORTED, Absent, DeviceProcess, DeviceSample, Reason

MIB = 1024 * 1024
MS = 1_000_000


class Bench:
    """One GPU's reader on a clock that moves when told to, together with the driver's."""

    def __init__(self, fake: Fake, clock: list[int], reader: DeviceReader) -> None:
        self.fake = fake
        self._clock = clock
        self.reader = reader

    def read(self, after_ms: int = 0, *, full: bool = True) -> DeviceSample:
        self._clock[0] += after_ms * MS
        self.fake.advance(after_ms)
        self.fake.forget_calls()
        return self.reader.read(self._clock[0], full=full)

    def read_twice(self) -> DeviceSample:
        self.read()
        return self.read(1000)


@contextmanager
def bench(tmp_path: Path, scenario: str = "gpus=1", generation: str = "") -> Iterator[Bench]:
    with loaded(tmp_path, scenario, generation) as fake:
        clock = [10**12]
        nvml = Nvml(clock=lambda: clock[0])
        nvml.open()
        yield Bench(fake, clock, nvml.reader(0))
        nvml.close()


def all_fields(sample: DeviceSample) -> set[object]:
    return {getattr(sample, name) for name in (*READING_FIELDS, *GPM_METRICS)} | {sample.processes_absent}


def test_a_client_of_mps_is_one_process_and_known_for_one_whichever_list_has_it(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 procs=5:1:C,6:2:CM,7:3:M") as b:
        sample = b.read(1000)
        assert [(p.pid, p.kind, p.mem_used_bytes) for p in sample.processes] == [
            (5, "C", 1),
            (6, "CM", 2),
            (7, "CM", 3),
        ]
        b.fake.set("gpu 0 rc.nvmlDeviceGetMPSComputeRunningProcesses_v3=3")
        later = b.read(6000)
    assert [(p.pid, p.kind) for p in later.processes] == [(5, "C"), (6, "C")]
    assert later.processes_absent is None, "a driver without MPS misses nothing"


def test_a_busy_gpu_reads_as_in_nvidia_smi(tmp_path: Path) -> None:
    scenario = "gpu 0 util=97 memutil=8 used=33934016512 power=626540 temp=61 sm=1530 mem=3201 reasons=0x4"
    with bench(tmp_path, scenario) as b:
        s = b.read()
    assert (s.gpu_util_pct, s.mem_util_pct, s.mem_used_bytes) == (97, 8, 33934016512)
    assert (s.power_w, s.temp_c, s.sm_clock_mhz, s.mem_clock_mhz) == (626.54, 61, 1530, 3201)
    assert s.clocks_event_reasons == 4
    assert s.processes_absent is None


def test_counters_keep_their_meaning_and_become_bytes(tmp_path: Path) -> None:
    ids = "gpm.1=99 gpm.2=95.8 gpm.3=12 gpm.5=93 gpm.11=1 gpm.12=2 gpm.13=3 gpm.10=17"
    with bench(tmp_path, f"gpu 0 {ids} gpm.20=20 gpm.21=56528 gpm.60=60 gpm.61=61") as b:
        s = b.read_twice()
    assert s.gpm_window_ns == 1000 * MS
    assert (s.busy_pct, s.sm_active_pct, s.sm_occupancy_pct, s.tensor_active_pct) == (99, 95.8, 12, 93)
    assert (s.fp64_active_pct, s.fp32_active_pct, s.fp16_active_pct, s.dram_active_pct) == (1, 2, 3, 17)
    assert (s.pcie_tx_bytes_per_s, s.pcie_rx_bytes_per_s) == (20 * MIB, 56528 * MIB)
    assert (s.nvlink_rx_bytes_per_s, s.nvlink_tx_bytes_per_s) == (60 * MIB, 61 * MIB)


def test_the_first_reading_has_no_counters_and_does_not_claim_zero(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 gpm.2=95") as b:
        s = b.read()
    assert s.sm_active_pct == NOT_READ
    assert s.gpm_window_ns == 0


def test_a_window_below_100_ms_is_not_asked_for_because_the_driver_would_answer_zero(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 gpm.2=95") as b:
        b.read()
        early = b.read(60)
        assert early.sm_active_pct == NOT_READ
        assert early.gpm_window_ns == 0
        assert b.fake.calls()["nvmlGpmSampleGet", 0] == 0
        late = b.read(60)
    assert late.sm_active_pct == 95
    assert late.gpm_window_ns == 120 * MS


def test_after_a_gap_of_half_a_minute_the_old_sample_is_dropped(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 gpm.2=95") as b:
        b.read()
        slept = b.read(31_000)
        assert slept.sm_active_pct == NOT_READ
        assert slept.gpm_window_ns == 0
        assert b.read(1000).sm_active_pct == 95


def test_one_failed_counter_read_does_not_end_the_counters_nor_pair_with_a_stale_sample(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 gpm.2=95 rc.nvmlGpmSampleGet=0,999,0") as b:
        b.read()
        failed = b.read(1000)
        assert failed.sm_active_pct == Absent(Reason.ERROR, "NVML error 999")
        assert failed.gpu_util_pct == 0
        assert b.read(1000).sm_active_pct == NOT_READ
        assert b.read(1000).sm_active_pct == 95


def test_a_counter_without_a_value_is_blank_beside_the_others(tmp_path: Path) -> None:
    scenario = "gpu 0 gpm.2=12.5 gpmrc.3=3 gpm.10=nan gpm.5=1.4e14 gpm.1=100.3 gpm.12=-1 gpm.60=1e300"
    with bench(tmp_path, scenario) as b:
        s = b.read_twice()
    assert s.sm_active_pct == 12.5
    assert s.sm_occupancy_pct == NOT_SUPPORTED
    assert s.dram_active_pct == Absent(Reason.OUT_OF_RANGE, "nan")
    assert s.tensor_active_pct == Absent(Reason.OUT_OF_RANGE, "1.4e+14 %")
    assert s.busy_pct == 100
    assert s.fp32_active_pct == Absent(Reason.OUT_OF_RANGE, "-1 %")
    assert s.nvlink_rx_bytes_per_s == Absent(Reason.OUT_OF_RANGE, "1e+300 MiB/s")


def test_ampere_has_no_counters_and_is_asked_only_once(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 gpm=0 arch=7 util=50") as b:
        assert b.read().sm_active_pct == NOT_SUPPORTED
        s = b.read(1000)
        asked = b.fake.calls()
    assert s.sm_active_pct == NOT_SUPPORTED
    assert s.gpu_util_pct == 50
    assert not [function for function, _ in asked if "Gpm" in function]


def test_utilization_of_four_billion_percent_is_dropped_once(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 util=4294967295,97 memutil=101,8 temp=4294967295 sm=4294967295") as b:
        junk, sane = b.read(), b.read(1000)
    assert junk.gpu_util_pct == Absent(Reason.OUT_OF_RANGE, "4294967295")
    assert junk.mem_util_pct == Absent(Reason.OUT_OF_RANGE, "101")
    assert junk.sm_clock_mhz == Absent(Reason.OUT_OF_RANGE, "4294967295")
    assert (sane.gpu_util_pct, sane.mem_util_pct) == (97, 8)


def test_memory_in_use_excludes_what_the_driver_reserves(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 used=0 reserved=644939776") as b:
        assert b.read().mem_used_bytes == 0


def test_without_memory_v2_the_older_call_answers_and_v2_is_not_asked_again(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 used=1000 reserved=24 rc.nvmlDeviceGetMemoryInfo_v2=13") as b:
        assert b.read().mem_used_bytes == 1024
        b.read(1000)
        assert b.fake.calls()["nvmlDeviceGetMemoryInfo_v2", 0] == 0
        assert b.fake.calls()["nvmlDeviceGetMemoryInfo", 0] == 1


def test_unified_memory_is_not_supported_rather_than_zero_bytes(tmp_path: Path) -> None:
    scenario = "gpu 0 procs=7:8589934592:C rc.nvmlDeviceGetMemoryInfo_v2=3 rc.nvmlDeviceGetMemoryInfo=3"
    with bench(tmp_path, scenario) as b:
        s = b.read()
        assert b.fake.calls()["nvmlDeviceGetMemoryInfo", 0] == 0
        b.read(1000)
        assert b.fake.calls()["nvmlDeviceGetMemoryInfo_v2", 0] == 0
    assert s.mem_used_bytes == NOT_SUPPORTED
    assert s.processes == (DeviceProcess(7, 8589934592, "C"),)


def test_a_total_of_zero_is_not_a_full_gpu(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 total=0 reserved=0 used=0") as b:
        assert b.read().mem_used_bytes == NOT_SUPPORTED


def test_older_calls_answer_for_temperature_reasons_and_processes(tmp_path: Path) -> None:
    old = "TemperatureV CurrentClocksEventReasons ComputeRunningProcesses_v3 GraphicsRunningProcesses_v3"
    faults = " ".join(f"rc.nvmlDeviceGet{name}=13" for name in old.split())
    with bench(tmp_path, f"gpu 0 temp=44 reasons=8 procs=5:1:C,6:2:G {faults}") as b:
        s = b.read()
    assert (s.temp_c, s.clocks_event_reasons) == (44, 8)
    assert s.processes == (DeviceProcess(5, 1, "C"), DeviceProcess(6, 2, "G"))
    assert s.processes_absent is None


def test_junk_pids_are_not_shown_and_both_lists_are_merged(tmp_path: Path) -> None:
    procs = "0:5:C,4294967295:5:C,1184:100:C,1184:100:C,1185:na:C,1186:7:CG,1187:9:G"
    with bench(tmp_path, f"gpu 0 procs={procs}") as b:
        s = b.read()
    assert s.processes == (
        DeviceProcess(1184, 100, "C"),
        DeviceProcess(1185, NOT_SUPPORTED, "C"),
        DeviceProcess(1186, 7, "CG"),
        DeviceProcess(1187, 9, "G"),
    )


def test_a_list_that_grew_while_it_was_read_is_read_again(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 procs=5:1:C rc.nvmlDeviceGetComputeRunningProcesses_v3=7,0") as b:
        s = b.read()
    assert s.processes == (DeviceProcess(5, 1, "C"),)
    assert s.processes_absent is None


def test_more_processes_than_the_kept_array_holds_are_all_there(tmp_path: Path) -> None:
    procs = ",".join(f"{pid}:{pid}:C" for pid in range(1, 301))
    with bench(tmp_path, f"gpu 0 procs={procs}") as b:
        b.read()
        b.fake.forget_calls()
        s = b.read(1000)
        assert b.fake.calls()["nvmlDeviceGetComputeRunningProcesses_v3", 0] == 1, (
            "the array stays as long as it had to be"
        )
    assert s.processes == tuple(DeviceProcess(pid, pid, "C") for pid in range(1, 301))


@pytest.mark.parametrize("generation", ["", "535", "535.43", "525", "470"])
def test_each_driver_s_layout_of_the_process_list_is_read_as_it_writes_it(tmp_path: Path, generation: str) -> None:
    # nvitop#75, #76, #88, MangoHud#1715: drivers 535.43 to 535.86 write 32 bytes for each entry, all others 24.
    with bench(tmp_path, "gpu 0 procs=101:5368709120:C,102:6368709120:C,103:7:CG,104:na:C", generation) as b:
        s = b.read()
    assert s.processes_absent is None
    assert s.processes == (
        DeviceProcess(101, 5368709120, "C"),
        DeviceProcess(102, 6368709120, "C"),
        DeviceProcess(103, 7, "CG"),
        DeviceProcess(104, NOT_SUPPORTED, "C"),
    )


def test_a_process_list_that_may_be_incomplete_says_so(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 procs=5:1:C rc.nvmlDeviceGetGraphicsRunningProcesses_v3=4") as b:
        s = b.read()
    assert s.processes == (DeviceProcess(5, 1, "C"),)
    assert s.processes_absent == Absent(Reason.NO_PERMISSION)


@pytest.mark.parametrize(("code", "reason"), [(3, Reason.NOT_SUPPORTED), (13, Reason.NOT_SUPPORTED)])
def test_what_a_card_does_not_have_is_asked_once(tmp_path: Path, code: int, reason: Reason) -> None:
    with bench(tmp_path, f"gpu 0 rc.nvmlDeviceGetPowerUsage={code}") as b:
        assert b.read().power_w == Absent(reason)
        assert b.read(1000).power_w == Absent(reason)
        assert b.fake.calls()["nvmlDeviceGetPowerUsage", 0] == 0


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (4, Absent(Reason.NO_PERMISSION)),
        (21, Absent(Reason.NOT_FOUND)),
        (10, Absent(Reason.TIMEOUT)),
        (999, Absent(Reason.ERROR, "NVML error 999")),
    ],
)
def test_a_passing_failure_is_asked_again(tmp_path: Path, code: int, absent: Absent) -> None:
    with bench(tmp_path, f"gpu 0 rc.nvmlDeviceGetPowerUsage={code},0 power=5000") as b:
        assert b.read().power_w == absent
        assert b.read(1000).power_w == 5.0


def test_a_gpu_off_the_bus_still_gives_a_sample_and_costs_two_calls(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 procs=5:1:C") as b:
        b.read_twice()
        b.fake.set("gpu 0 rc.*=15")
        s = b.read(1000)
        assert sum(b.fake.calls().values()) == 2
        b.fake.set("gpu 0 rc.*=0")
        back = b.read(1000)
    assert all_fields(s) == {Absent(Reason.LOST, "the GPU fell off the bus")}
    assert s.processes == ()
    assert back.processes == (DeviceProcess(5, 1, "C"),)


def test_calls_that_say_lost_do_not_blank_what_still_answers(tmp_path: Path) -> None:
    scenario = "gpu 0 util=40 reasons=4 rc.nvmlDeviceGetTemperatureV=16 rc.nvmlDeviceGetPowerUsage=16"
    with bench(tmp_path, scenario) as b:
        s = b.read()
    assert s.temp_c == s.power_w == Absent(Reason.LOST, "the GPU needs a reset")
    assert (s.gpu_util_pct, s.clocks_event_reasons) == (40, 4)


def test_a_reloading_driver_counts_as_lost_only_after_three_readings(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.read()
        b.fake.set("gpu 0 rc.*=1")
        reasons = [all_fields(b.read(1000)) for _ in range(3)]
        assert b.reader.driver_gone_reads == 3
        b.fake.set("gpu 0 rc.*=0")
        b.read(1000)
        assert b.reader.driver_gone_reads == 0
    detail = "the driver was reloaded"
    assert reasons == [{Absent(Reason.DRIVER, detail)}, {Absent(Reason.DRIVER, detail)}, {Absent(Reason.LOST, detail)}]


def test_the_binding_raising_something_else_is_a_reason_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path, "gpu 0 util=40") as b:
        monkeypatch.setattr("pynvml.nvmlDeviceGetPowerUsage", lambda handle: int("x"))
        s = b.read()
    assert isinstance(s.power_w, Absent)
    assert s.power_w.reason is Reason.ERROR
    assert s.power_w.detail.startswith("ValueError: invalid literal")
    assert s.gpu_util_pct == 40


def test_a_tick_stays_within_its_budget_of_driver_calls(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 procs=5:1:C,6:1:CG") as b:
        b.read_twice()
        full = b.fake.calls()
        b.read(1000, full=False)
        cheap = b.fake.calls()
    assert full == {
        ("nvmlGpmSampleGet", 0): 1,
        ("nvmlGpmMetricsGet", 0): 1,
        ("nvmlDeviceGetUtilizationRates", 0): 1,
        ("nvmlDeviceGetMemoryInfo_v2", 0): 1,
        ("nvmlDeviceGetComputeRunningProcesses_v3", 0): 1,
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", 0): 1,
        ("nvmlDeviceGetPowerUsage", 0): 1,
        ("nvmlDeviceGetTemperatureV", 0): 1,
        ("nvmlDeviceGetClockInfo", 0): 2,
        ("nvmlDeviceGetCurrentClocksEventReasons", 0): 1,
    }
    assert cheap == {
        ("nvmlGpmSampleGet", 0): 1,
        ("nvmlGpmMetricsGet", 0): 1,
        ("nvmlDeviceGetPowerUsage", 0): 1,
        ("nvmlDeviceGetClockInfo", 0): 2,
        ("nvmlDeviceGetCurrentClocksEventReasons", 0): 1,
    }


def test_a_cheap_reading_carries_memory_and_processes_and_admits_the_rest(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 util=40 used=1000 procs=5:1:C gpm.2=50") as b:
        b.read()
        s = b.read(150, full=False)
    assert (s.mem_used_bytes, s.processes, s.processes_absent) == (1000, (DeviceProcess(5, 1, "C"),), None)
    assert (s.gpu_util_pct, s.mem_util_pct, s.temp_c) == (NOT_READ, NOT_READ, NOT_READ)
    assert s.sm_active_pct == 50


def test_time_inside_the_driver_is_counted_call_by_call(tmp_path: Path) -> None:
    with loaded(tmp_path, "gpu 0 gpm=0"):
        ticks = iter(range(0, 10**9, 5))
        nvml = Nvml(clock=lambda: next(ticks))
        nvml.open()
        reader = nvml.reader(0)
        reader.read(0)
        # Nine calls of one clock step each: util, memory, two lists, power, temperature, two clocks, reasons.
        assert reader.read(0).nvml_ns == 9 * 5
        nvml.close()


def test_waiting_for_another_gpus_counters_is_not_time_inside_the_driver(tmp_path: Path) -> None:
    with bench(tmp_path) as b:
        b.read()
        gate = b.reader._gate
        with gate.hold():
            s = b.read(1000)
    assert s.sm_active_pct == Absent(Reason.TIMEOUT, "a GPM call for another GPU has not returned")
    assert s.nvml_ns == 0
    assert s.gpu_util_pct == 0


def test_closing_under_a_reading_that_hangs_leaves_the_driver_open(tmp_path: Path) -> None:
    with loaded(tmp_path, "gpu 0 hang.nvmlDeviceGetPowerUsage=1") as fake:
        nvml = Nvml()
        nvml.open()
        reader = nvml.reader(0)
        thread = threading.Thread(target=reader.read, args=(0,), daemon=True)
        thread.start()
        while not fake.calls()["nvmlDeviceGetPowerUsage", 0]:
            assert thread.is_alive()
        nvml.close()
        assert fake.calls()["nvmlShutdown", None] == 0
        assert fake.calls()["nvmlGpmSampleFree", None] == 0
        fake.release()
        thread.join(20)


def test_the_fake_moves_between_two_values_for_a_benchmark(tmp_path: Path) -> None:
    with bench(tmp_path, "gpu 0 power=100000..300000/2000") as b:
        watts = [b.read(250).power_w for _ in range(8)]
    numbers = [value for value in watts if isinstance(value, float)]
    assert len(numbers) == 8
    assert 100 <= min(numbers) < 160
    assert 240 < max(numbers) <= 300
