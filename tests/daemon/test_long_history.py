"""A day of every GPU in memory: what the charts of the GPU view are drawn from."""

from __future__ import annotations

from msgspec.structs import replace

from gpuwatch import wire
from gpuwatch.daemon.history import LongHistory, Track
from gpuwatch.model import ClocksEvent, DeviceSample

S = 1_000_000_000


def sample(second: float, busy: float, reasons: int = 0, index: int = 0) -> DeviceSample:
    return DeviceSample(index, int(second * S), busy_pct=busy, power_w=500.0, clocks_event_reasons=reasons)


def observed(*samples: DeviceSample) -> LongHistory:
    history = LongHistory()
    for seq, one in enumerate(samples):
        history.observe(wire.Tick(1, seq, one.mono_ns, 0, (one,)))
    return history


def asked(history: LongHistory, seconds: float, points: int = 300, index: int = 0) -> wire.History:
    answer = history.answer(wire.GetHistory(7, index, seconds, points))
    assert isinstance(answer, wire.History)
    return answer


def curve(answer: wire.History, name: str) -> wire.HistorySeries:
    return next(series for series in answer.series if series.name == name)


def test_an_hour_has_every_second() -> None:
    answer = asked(observed(*(sample(n, n % 100) for n in range(7200))), 300)
    busy = curve(answer, "busy_pct")
    assert (answer.request_id, answer.step_ns, len(busy.mean)) == (7, S, 300)
    assert answer.start_mono_ns == (7200 - 300) * S
    assert [round(v * busy.scale) for v in busy.mean[-3:] if v is not None] == [97, 98, 99]
    assert busy.low == busy.high == ()


def test_a_spike_of_a_second_is_still_there_in_a_day() -> None:
    samples = [sample(n, 100.0 if n == 40_000 else 10.0) for n in range(86_400)]
    busy = curve(asked(observed(*samples), 86_400), "busy_pct")
    highs = [v for v in busy.high if v is not None]
    assert len(busy.mean) <= 300
    assert max(highs) == 1000
    assert {v for v in busy.low if v is not None} == {100}
    assert max(v for v in busy.mean if v is not None) < 110


def test_a_reading_that_was_not_there_is_no_zero() -> None:
    answer = asked(observed(*(sample(n, 50.0) for n in (0, 1, 2, 8, 9))), 10, 10)
    assert curve(answer, "busy_pct").mean == (500, 500, 500, None, None, None, None, None, 500, 500)
    assert "sm_active_pct" not in {series.name for series in answer.series}


def test_throttling_is_kept_however_short_it_was() -> None:
    samples = [sample(n, 50.0, int(ClocksEvent.HW_THERMAL) if n == 3000 else 0) for n in range(6000)]
    answer = asked(observed(*samples), 6000, 100)
    assert [bits for bits in answer.reasons if bits] == [int(ClocksEvent.HW_THERMAL)]


def test_a_hung_gpu_repeats_itself_and_adds_nothing() -> None:
    history = observed(sample(1, 10.0), sample(2, 30.0))
    stuck = sample(2, 90.0)
    for seq in range(10):
        history.observe(wire.Tick(1, seq, (3 + seq) * S, 0, (stuck,)))
    assert curve(asked(history, 5, 5), "busy_pct").mean[-2:] == (100, 300)


def test_memory_is_bounded() -> None:
    track = Track(S, 100, ranges=True)
    for n in range(1000):
        track.add(n * S, [1.0] * 11, 0)
    assert len(track.buckets) <= 116
    assert track.buckets[-1] == 999
    assert {len(column) for column in (*track.mean, *track.low, *track.high)} == {len(track.buckets)}


def test_what_cannot_be_answered_is_one_line() -> None:
    history = observed(sample(1, 10.0))
    for request in (wire.GetHistory(7, 0, 90_000), wire.GetHistory(7, 0, 0), wire.GetHistory(7, 3, 60)):
        answer = history.answer(request)
        assert isinstance(answer, wire.Refused)
        assert "\n" not in answer.message
    history.clear()
    assert isinstance(history.answer(wire.GetHistory(7, 0, 60)), wire.Refused)


def test_an_answer_is_small_however_much_is_asked_for() -> None:
    one = replace(
        sample(0, 87.5), sm_active_pct=50.0, tensor_active_pct=20.0, dram_active_pct=10.0, gpu_util_pct=100, temp_c=60,
        sm_clock_mhz=1980, mem_used_bytes=60 << 30, pcie_rx_bytes_per_s=9e9, pcie_tx_bytes_per_s=1e9,
    )  # fmt: skip
    history = observed(*(replace(one, mono_ns=n * 10 * S) for n in range(8640)))
    answer = asked(history, 86_400, 10**9)
    assert len(answer.reasons) <= 600
    assert len(wire.encode(answer)) < 64 * 1024
