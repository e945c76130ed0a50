"""The arithmetic of ``bench/h200.py``: a wrong sign or a window of the wrong time would be printed as a measurement."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import pytest

from bench.gpm_beside import LAG_NS, ceiling, compared, payload_bytes, within
from bench.h200 import lines
from bench.paired import Mark, found, measure, rate
from gpuwatch.collect.nvml_fields import blank_sample
from gpuwatch.model import Absent, DeviceSample, Reason, value_or

S = 1_000_000_000


def marks_of(rates: Sequence[float]) -> list[Mark]:
    """A mark each second, ``rates`` steps in each."""
    done = itertools.accumulate(rates, initial=0.0)
    return [(second * S, round(1000 * steps)) for second, steps in enumerate(done)]


def test_the_rate_of_a_turn_is_taken_between_the_marks_that_enclose_it() -> None:
    marks = [(0, 0), (S, 100), (2 * S, 300)]
    assert rate(marks, S // 2, S + S // 2) == pytest.approx(150.0)
    assert rate(marks, 0, 2 * S) == pytest.approx(150.0)


def test_a_turn_that_the_job_did_not_tell_all_of_is_not_a_figure() -> None:
    with pytest.raises(RuntimeError, match="did not tell"):
        rate([(0, 0), (S, 100)], 0, 2 * S)
    with pytest.raises(RuntimeError, match="did not tell"):
        rate([], 0, S)


def test_a_machine_that_becomes_slower_all_the_time_is_not_a_cost_of_the_daemon() -> None:
    # With, without, without, with: eight turns of a second in which the job loses 1 % a turn, whoever looks.
    marks = marks_of([100 - turn for turn in range(8)])
    turns = [(on, n * S, (n + 1) * S) for n, on in enumerate((True, False, False, True) * 2)]
    assert found(turns, marks).change_pct == pytest.approx(0.0, abs=0.05)


def test_a_job_that_loses_two_per_cent_while_it_is_watched_is_said_to_lose_them() -> None:
    order = (True, False, False, True, True, False, False, True)
    marks = marks_of([98.0 if on else 100.0 for on in order])
    result = found([(on, n * S, (n + 1) * S) for n, on in enumerate(order)], marks)
    assert result.change_pct == pytest.approx(-2.0)
    assert result.low_pct <= result.change_pct <= result.high_pct
    assert (result.with_it, result.without) == (98_000.0, 100_000.0)
    assert [pair.with_first for pair in result.pairs] == [True, False, True, False]


class _Job:
    """Steps at 100 a second by a clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.switched: list[bool] = []

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)

    def marks(self) -> list[Mark]:
        return [(0, 0), (self.now_ns, round(self.now_ns / S * 100))]


def test_a_measurement_ends_with_its_treatment_off_and_within_its_time() -> None:
    job = _Job()
    result = measure(
        job, job.switched.append, pairs=12, turn_s=2.0, ends_s=20.0, sleep=job.sleep, clock=lambda: job.now_ns
    )
    assert len(result.pairs) == 4  # 16 s of turns, a second for the last mark; a fifth pair would end at 21 s.
    assert job.switched == [True, False, False, True, True, False, False, True, False]
    assert job.now_ns <= 20 * S


def test_too_little_time_is_said_instead_of_an_interval_of_two_pairs() -> None:
    job = _Job()
    with pytest.raises(RuntimeError, match="2 pairs only"):
        measure(job, job.switched.append, pairs=12, turn_s=2.0, ends_s=10.0, sleep=job.sleep, clock=lambda: job.now_ns)
    assert job.switched[-1] is False


def window(end_ns: int, gap_ns: int = S // 10, tensor: float | Absent = 50.0) -> DeviceSample:
    sample = blank_sample(0, end_ns, Absent(Reason.NOT_READ))
    return msgspec.structs.replace(
        sample, gpm_window_ns=gap_ns, tensor_active_pct=tensor, sm_clock_mhz=1830, mem_clock_mhz=3201, power_w=700.0
    )


def test_a_window_that_may_have_begun_before_the_work_is_left_out() -> None:
    begin, end = 10 * S, 12 * S
    early = window(begin + LAG_NS + S // 10 - 1)
    first, last, late = window(begin + LAG_NS + S // 10), window(end), window(end + 1)
    unread = blank_sample(0, begin + S, Absent(Reason.NOT_READ))
    assert within([early, unread, first, last, late], begin, end) == [first, last]


def test_full_tensor_cores_are_the_data_sheet_at_the_clock_of_the_data_sheet() -> None:
    h200 = {"capability": "9.0", "sm_count": 132, "memory_bus_bits": 6144}
    assert value_or((ceiling(h200, "bf16", 1830, 3201) or 0.0) / 1e12, 0) == pytest.approx(989.4, rel=0.001)
    assert (ceiling(h200, "dram", 1830, 3201) or 0.0) / 1e9 == pytest.approx(4916.7, rel=0.001)
    assert ceiling({"capability": "7.5", "sm_count": 40}, "bf16", 1500, 5000) is None
    assert ceiling({"capability": "9.0", "sm_count": 132}, "dram", 1830, 3201) is None


def load_line() -> dict[str, object]:
    """10 calls of 49.47 TFLOP each second: half of what an H200 can do."""
    marks = [(S * n // 10, n) for n in range(31)]
    return {"load": "matmul", "per_call": 49.47e12, "unit": "FLOP", "marks": marks}


FACTS = {"name": "NVIDIA H200", "capability": "9.0", "sm_count": 132}


def test_a_counter_is_held_against_the_work_by_the_data_sheet_and_by_the_clock() -> None:
    row = compared(load_line(), FACTS, [window(S * n // 10) for n in range(31)])
    assert row["own"] == pytest.approx(494.7)
    assert row["own_over_clock"] == pytest.approx(1.0, abs=0.001)
    assert row["own_over_data_sheet"] == pytest.approx(1.0, abs=0.001)


def test_the_clock_that_a_spin_has_counted_is_believed_before_the_one_that_nvml_tells() -> None:
    # At its power limit a GPU changes its clock many times a second: 1647 MHz on average, 1830 when asked.
    row = compared({**load_line(), "spun_mhz": 1647.0}, FACTS, [window(S * n // 10) for n in range(31)])
    assert row["own_over_clock"] == pytest.approx(1830 / 1647, abs=0.001)
    assert (row["sm_mhz"], row["spun_mhz"]) == (1830, 1647.0)


def test_what_the_link_counts_is_packets_and_the_work_counts_payload() -> None:
    line = {"load": "h2d", "per_call": 5e9, "unit": "B", "marks": [(S * n // 10, n) for n in range(31)]}
    on_the_link = [
        msgspec.structs.replace(window(S * n // 10), pcie_rx_bytes_per_s=50e9 * 276 / 256) for n in range(31)
    ]
    assert compared(line, {**FACTS, "payload_bytes": 256}, on_the_link)["own_over_clock"] == pytest.approx(1.0)
    assert compared(line, FACTS, on_the_link)["own_over_clock"] == pytest.approx(256 / 276)


def config_space(*capabilities: tuple[int, int, int]) -> bytes:
    """256 bytes with a list of (place, id, Device Control)."""
    raw = bytearray(256)
    raw[0x34] = capabilities[0][0]
    for number, (at, kind, control) in enumerate(capabilities):
        raw[at : at + 2] = bytes((kind, capabilities[number + 1][0] if number + 1 < len(capabilities) else 0))
        raw[at + 8 : at + 10] = control.to_bytes(2, "little")
    return bytes(raw)


@pytest.mark.parametrize(
    ("config", "payload"),
    [
        (config_space((0x60, 0x01, 0), (0x78, 0x10, 0x2936)), 256),
        (config_space((0x40, 0x10, 0x5810)), 128),
        (config_space((0x60, 0x05, 0)), None),
        (config_space((0x60, 0x01, 0), (0x78, 0x10, 0x2936))[:64], None),
        (b"", None),
    ],
)
def test_the_size_of_a_packet_is_what_the_device_is_set_to(config: bytes, payload: int | None) -> None:
    assert payload_bytes(config) == payload


def test_a_list_of_capabilities_that_goes_in_a_circle_ends() -> None:
    raw = bytearray(config_space((0x60, 0x05, 0)))
    raw[0x61] = 0x60
    assert payload_bytes(bytes(raw)) is None


def test_a_card_without_the_counter_says_why_instead_of_a_ratio() -> None:
    missing = Absent(Reason.NOT_SUPPORTED)
    with pytest.raises(RuntimeError, match=r"matmul: 0 windows .*tensor_active_pct: not_supported"):
        compared(load_line(), FACTS, [window(S * n // 10, tensor=missing) for n in range(31)])


def test_what_could_not_be_measured_stands_below_the_tables() -> None:
    answer = {"machine": {"cores": "2"}, "parts": {"gpm": {"results": [], "failures": [], "took_s": 1.0}}}
    text = "\n".join(lines({**answer, "failures": ["small: the job ended"]}))
    assert text.endswith("not measured: small: the job ended")
