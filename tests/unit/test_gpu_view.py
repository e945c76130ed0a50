"""Rules of the GPU view and of MIG in lists: limits, what happened below a second, letters on the time axis."""

from __future__ import annotations

import sys
from datetime import UTC
from pathlib import Path

from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent.parent / "tui"))

from tui_states import NOW_NS, SECOND, STATES

from gpuwatch.client.state import TimedBurst
from gpuwatch.model import BurstSummary, CounterGrowth, DeviceHealth, ProbeValue
from gpuwatch.tui import bursts, marks, series
from gpuwatch.tui.selection import ViewOptions, move, selected_device
from gpuwatch.tui.text import Row, plain
from gpuwatch.tui.view import screen


def drawn(state: str, width: int = 80, height: int = 24, **options: object) -> list[Row]:
    chosen = replace(ViewOptions(zone=UTC), **options)
    return screen(STATES[state], chosen, width, height, now_ns=NOW_NS)


# --------------------------------------------------------------------------- limits


def test_a_ceiling_is_the_best_that_a_clean_probe_has_reached_on_this_gpu() -> None:
    state = STATES["probed"]
    assert state.inventory is not None
    card = state.inventory.devices[0]
    assert series.ceilings(state, card)["pcie_rx_bytes_per_s"] == 54.9e9
    dirty = replace(state, probes=tuple(replace(p, contaminated=True) for p in state.probes))
    assert series.ceilings(dirty, card) == {}
    assert series.ceilings(state, replace(card, uuid="GPU-other")) == {}


def test_the_ceiling_is_a_line_of_its_own_beside_both_ways_of_the_link() -> None:
    text = plain(drawn("probed", 160, 50, view="gpu"))
    assert "⠁ 51.1 GiB/s measured" in text
    assert "PCIe in 1.2 GiB/s" in text
    narrow = plain(drawn("probed", 120, 35, view="gpu"))
    assert "⠁ 51G measured" in narrow
    assert "⠁⠁⠁⠁⠁⠁⠁⠁" in next(line for line in narrow.splitlines() if " 51G ⠁" in line)


def test_a_link_that_is_slower_one_way_has_two_ceilings() -> None:
    state = STATES["probed"]
    slow = ProbeValue("d2h_pinned_256MiB", "GB/s", 12.0, 11.9, 12.1, 30)
    probes = tuple(
        replace(p, values=(p.values[0], slow)) if p.probe == "copies" and p.values else p for p in state.probes
    )
    rows = screen(replace(state, probes=probes), ViewOptions(view="gpu", zone=UTC), 160, 50, now_ns=NOW_NS)
    assert "in 51G, out 11G measured" in plain(rows)


def test_percent_of_a_peak_has_no_ceiling_from_a_probe_of_another_unit() -> None:
    state = STATES["probed"]
    assert state.inventory is not None
    reached = series.ceilings(state, state.inventory.devices[0])
    assert set(reached) == {"pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"}


# --------------------------------------------------------------------------- below a second


def test_the_chart_of_bursts_gives_way_to_a_line_before_any_other_chart_is_lost() -> None:
    charts = {height: plain(drawn("bursty", 120, height, view="gpu")) for height in range(15, 60)}
    with_chart = [height for height, text in charts.items() if "below a second" in text]
    assert with_chart == list(range(with_chart[0], 60))
    for height, text in charts.items():
        assert ("sample by sample" in text) != (height in with_chart)
        if height in with_chart:
            assert "SM clock 1980 MHz  ⠁ most" in text


def test_a_single_tick_of_bursts_is_a_line_and_no_chart() -> None:
    state = STATES["bursty"]
    state = replace(state, burst_history={0: state.burst_history[0][-1:]})
    text = plain(screen(state, ViewOptions(view="gpu"), 160, 50, now_ns=NOW_NS))
    assert "sample by sample" in text


def test_a_burst_of_one_sample_is_seen_and_a_dark_ring_is_a_gap() -> None:
    def told(second: int, *values: int) -> TimedBurst:
        return TimedBurst(NOW_NS + second * SECOND, BurstSummary(0, values, 100, 100, 100))

    state = replace(
        STATES["live1"], burst_history={0: (told(-3, 0, 0, 0, 0, 0), told(-2), told(-1, 100), told(0, 0, 0, 100, 0, 0))}
    )
    assert state.inventory is not None
    rows = bursts.util_chart(state, state.inventory.devices[0], ViewOptions(), 80, with_power=True)
    assert "0-100 %" in plain(rows[:1])
    assert "power 100 W" in plain(rows[:1])
    # Of four seconds the second has no sample; five samples are two and a half cells.
    peaks, floor = ("".join(text for text, _ in row[1:])[-10:] for row in (rows[1], rows[3]))
    assert peaks == "     ⣿⡇⢸  "
    assert floor == peaks


def test_samples_of_two_seconds_that_come_together_are_drawn_over_both() -> None:
    def told(second: int, *values: int) -> TimedBurst:
        return TimedBurst(NOW_NS + second * SECOND, BurstSummary(0, values, 100, 100, 100))

    history = (told(-2, *[0] * 10), told(0, *[0] * 5, *[100] * 5))
    state = replace(STATES["live1"], burst_history={0: history})
    assert state.inventory is not None
    rows = bursts.util_chart(state, state.inventory.devices[0], ViewOptions(), 80, with_power=False)
    # Five samples of 200 ms are two and a half cells, whose edges are not those of the samples.
    assert "".join(text for text, _ in rows[1][1:])[-6:] == "  ⢸⣿⣿⡇"


# --------------------------------------------------------------------------- marks


def test_every_letter_on_the_axis_is_explained_at_every_width() -> None:
    for window_s in (60, 300, 600):
        for width in (80, 100, 120, 160, 200):
            lines = plain(drawn("faulty", width, 50, view="gpu", window_s=window_s)).splitlines()
            held = next(line for line in lines if line.startswith("held "))
            driver = next(line for line in lines if line.startswith(" drv "))
            axis = next(line for line in lines if line.strip().startswith(f"-{window_s // 60} min"))
            explained = held + driver + axis
            for letter, text in (("X", "X XID 79"), ("E", "E memory"), ("x", "x job XID 31"), ("p", "p power cap")):
                assert text in explained, (window_s, width, letter)
            assert "now" in axis


def test_the_jobs_own_xid_and_one_of_the_card_have_different_letters() -> None:
    events = STATES["faulty"].device_events
    assert [marks.letter_of(event) for event in events] == ["x", "X", "E", "E", "D", "X"]


def test_an_xid_from_before_the_window_comes_with_a_longer_one() -> None:
    assert "XID 79 48" not in plain(drawn("faulty", view="gpu", window_s=600))
    past = STATES["past"]
    state = replace(past, device_events=STATES["faulty"].device_events)
    hour = plain(screen(state, ViewOptions(view="gpu", window_s=3600), 80, 24, now_ns=NOW_NS))
    assert "X XID 79 " in hour
    later = replace(state, past=replace(past.past, seconds=6 * 3600.0, step_ns=72 * SECOND)) if past.past else state
    start = NOW_NS - 6 * 3600 * SECOND
    later = replace(later, past=replace(later.past, start_mono_ns=start)) if later.past else later
    six = plain(screen(later, ViewOptions(view="gpu", window_s=6 * 3600), 80, 24, now_ns=NOW_NS))
    assert "X XID 79 48" in six


def test_what_the_driver_told_of_a_divided_gpu_is_marked_on_its_instances_and_on_no_other_gpu() -> None:
    tree = STATES["mig_tree"]
    xid = STATES["faulty"].device_events[1]
    unknown = replace(xid, device_index=-1, xid=62)
    state = replace(tree, device_events=(unknown, xid))
    assert [e.xid for e in series.events_of(state, 0)] == [62, 79]
    assert [e.xid for e in series.events_of(state, 101)] == [62, 79]
    assert [e.xid for e in series.events_of(state, 1)] == [62]


def test_a_recording_that_went_back_does_not_mark_its_future() -> None:
    xid = replace(STATES["faulty"].device_events[0], mono_ns=NOW_NS + 5 * SECOND)
    assert series.events_of(replace(STATES["live1"], device_events=(xid,)), 0) == ()


# --------------------------------------------------------------------------- MIG


def test_instances_follow_their_gpu_and_the_arrows_walk_them_in_that_order() -> None:
    state = STATES["mig_tree"]
    options, walked = ViewOptions(), [selected_device(state, ViewOptions())]
    for _ in range(5):
        options = move(state, options, 1)
        walked.append(options.device)
    assert walked == [0, 100, 101, 104, 1, 1]


def test_an_instance_can_be_told_from_a_gpu_at_every_width() -> None:
    for width in (60, 70, 80, 120, 300):
        lines = plain(drawn("mig_tree", width, 24)).splitlines()
        assert [line[1:6] for line in lines[2:7]] == ["0    ", "├─100", "├─101", "└─104", "1    "]
    assert [line[1:6] for line in plain(drawn("mig_tree", 80, 24, ascii_only=True)).splitlines()[3:6]] == [
        "|-100",
        "|-101",
        "`-104",
    ]


def test_an_instance_without_its_gpu_stands_for_itself() -> None:
    state = STATES["mig_tree"]
    assert state.inventory is not None
    alone = replace(state.inventory, devices=state.inventory.devices[3:4])
    text = plain(screen(replace(state, inventory=alone), ViewOptions(), 80, 24, now_ns=NOW_NS))
    assert "▸101 H200 MIG" in text
    assert "MIG 1g.18gb of GPU" not in text
    assert "H200 MIG 1g.18gb of GPU 0" in plain(drawn("mig_tree", 160, 50, device=101))


# --------------------------------------------------------------------------- what the card says of itself


def test_a_card_in_order_takes_no_line_at_80x24_and_tells_its_margin_where_there_is_room() -> None:
    well = DeviceHealth(0, NOW_NS, temp_margin_c=47, persistence_mode=1, virtualization=1)
    state = replace(STATES["live1"], health={0: well})
    plain_state = plain(screen(STATES["live1"], ViewOptions(view="gpu", zone=UTC), 80, 24, now_ns=NOW_NS))
    assert plain(screen(state, ViewOptions(view="gpu", zone=UTC), 80, 24, now_ns=NOW_NS)) == plain_state
    text = plain(screen(state, ViewOptions(view="gpu", zone=UTC), 120, 40, now_ns=NOW_NS))
    assert " card 47 °C left to the slowdown temperature · passed through to this virtual machine" in text


def test_new_errors_held_clocks_and_heat_are_on_the_screen_at_80x24() -> None:
    ill = DeviceHealth(
        *(0, NOW_NS),
        throttle_power_brake_share=0.1,
        grown=(CounterGrowth("pcie_replays", 12),),
        grown_window_ns=600 * SECOND,
    )
    for health, said in (
        (ill, "+12 PCIe replays in 10 min held down: external power brake 10 % of the time"),
        (DeviceHealth(0, NOW_NS, temp_margin_c=-2), "2 °C beyond the slowdown temperature"),
    ):
        state = replace(STATES["live1"], health={0: health})
        rows = screen(state, ViewOptions(view="gpu", zone=UTC), 80, 24, now_ns=NOW_NS)
        assert f" card {said}" in " ".join(plain(rows).split())
        assert len(rows) == 24
