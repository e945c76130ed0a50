"""Rules of the views that a screen as text does not show: roles, widths, selection, what is said of absence."""

from __future__ import annotations

import re
import sys
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent.parent / "tui"))

from tui_states import MAIN, NOW_NS, SECOND, STATES, fleet, live

from gpuwatch.client.rates import IoRate
from gpuwatch.model import Absent, AccountShare, EvidenceRow, Reason, Unwatched
from gpuwatch.tui import columns, diagnosis, facts, series
from gpuwatch.tui import hosts as host_list
from gpuwatch.tui.account import over_time
from gpuwatch.tui.account import rows as account_rows
from gpuwatch.tui.help import KEYS, help_rows
from gpuwatch.tui.selection import ViewOptions, jobs, move, next_job, process_order, start_request
from gpuwatch.tui.text import (
    ASCII,
    UNICODE,
    Glyphs,
    Row,
    as_ascii,
    between,
    clean,
    cut,
    cut_left,
    fit,
    pad,
    plain,
    row_width,
    selected,
    width_of,
    wrap,
)
from gpuwatch.tui.view import VIEWS, screen
from gpuwatch.wire import AccountPoint


def drawn(state: str, width: int = 80, height: int = 24, **options: object) -> list[Row]:
    chosen = replace(ViewOptions(zone=UTC), **options)
    return screen(STATES[state], chosen, width, height, now_ns=NOW_NS)


def roles_of(rows: list[Row], needle: str) -> set[str]:
    return {role for row in rows for text, role in row if needle in text}


# --------------------------------------------------------------------------- columns


def test_columns_only_come_and_never_go_as_the_width_grows() -> None:
    before: set[str] = set()
    for width in range(60, 301):
        names = {name for name, _ in columns.plan(width).columns}
        assert before <= names, width
        before = names


def test_the_truth_ladder_is_there_at_every_width() -> None:
    for width in range(60, 301):
        assert set(columns.LADDER) <= {name for name, _ in columns.plan(width).columns}


@pytest.mark.parametrize("width", range(60, 200))
def test_columns_never_overflow(width: int) -> None:
    plan = columns.plan(width)
    assert 1 + sum(cells for _, cells in plan.columns) + len(plan.columns) - 1 <= width


def test_eighty_columns_have_everything_a_person_looks_for() -> None:
    names = {name for name, _ in columns.plan(80).columns}
    assert {"gpu", "name", "memory", "power", "temp", "procs"} <= names


# --------------------------------------------------------------------------- honesty


def test_values_of_a_lost_daemon_are_dimmed() -> None:
    rows = drawn("lost")[2:-1]
    assert {role for row in rows for text, role in row if text.strip()} <= {"dim", "warn", "crit"}


def test_a_hung_gpu_is_marked_and_the_others_are_not() -> None:
    text = plain(drawn("hung"))
    assert text.count("12s old") == 1
    assert roles_of(drawn("hung"), "12s old") == {"warn"}


def test_the_detail_line_of_a_hung_gpu_says_how_old_it_is() -> None:
    assert "no reading for 12 s" in plain(drawn("hung", device=3))


def test_zero_is_a_number_and_absent_is_not() -> None:
    assert "n/a" not in plain(drawn("no_processes"))
    assert plain(drawn("absent", device=1)).count("the GPU is lost") == 1


def test_a_proxy_carries_its_mark_and_its_warning() -> None:
    text = plain(drawn("without_gpm"))
    assert " 38*" in text
    assert "says little" in text


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_words(reason: Reason) -> None:
    assert reason in facts._REASONS


def test_what_is_not_watched_any_more_stands_on_every_view_and_what_never_was_does_not() -> None:
    state = STATES["live1"]
    assert state.inventory is not None
    ended = Unwatched("XIDs and other events", Absent(Reason.DRIVER, "the driver was unloaded"))
    never = Unwatched("something", Absent(Reason.NOT_SUPPORTED))
    state = replace(state, inventory=replace(state.inventory, unwatched=(ended, never)))
    for view in VIEWS:
        rows = plain(screen(state, ViewOptions(zone=UTC, view=view), 80, 24, now_ns=NOW_NS)).splitlines()
        assert any("not watched: XIDs and other events" in row and "unloaded" in row for row in rows), view
        assert not any("something" in row for row in rows), view


def test_a_recording_says_so_on_every_view() -> None:
    for view in VIEWS:
        text = plain(drawn("recorded", view=view))
        assert "RECORDED" in text
        assert "starved-loader.gwrec of 2026-11-29" in text


def test_cause_and_remedy_are_on_the_first_screen() -> None:
    for count in ("live1", "live8"):
        text = plain(drawn(count))
        assert "waits for data" in text
        assert "Raise num_workers from 1 to 8" in text
        assert "train.py:88" in text


def test_severity_is_a_word_and_a_sign_not_only_a_colour() -> None:
    assert "✖ critical" in plain(drawn("live1"))
    assert "X critical" in plain(drawn("live1", ascii_only=True))


def test_account_percentages_sum_to_one_hundred() -> None:
    text = plain(account_rows(STATES["live1"].diagnoses[0].account, 200, UNICODE))
    numbers = [int(word) for word in text.replace("<1 %", "0 %").split() if word.isdigit()]
    assert sum(numbers) == 100


def test_the_course_of_a_job_ends_with_its_newest_account_on_the_right() -> None:
    points = tuple(AccountPoint(n * 60 * SECOND, "idle", {"idle": 1000}) for n in range(200))
    points += (AccountPoint(200 * 60 * SECOND, "healthy", {"computing": 600, "idle": 400}),)
    rows = plain(over_time(points, ViewOptions(zone=UTC), 80, 24)).splitlines()
    bars = [line[6:] for line in rows if line[:6] in ("100 % ", "      ", "  0 % ")][:6]
    assert [bar[-1] for bar in bars] == list("::████"), "sixty percent of six cells, from the floor up"
    assert all(set(bar[:-1]) == {":"} for bar in bars)
    assert rows[-3].endswith("03:20"), "the axis names the newest diagnosis"
    assert rows[-1].endswith("→ 03:20 healthy")


def test_on_a_low_screen_what_is_to_be_changed_comes_before_the_course() -> None:
    options = ViewOptions(view="diagnosis", zone=UTC)
    low, high = (plain(diagnosis.rows(STATES["course"], options, 80, room)) for room in (22, 48))
    assert low.index("What to change") < low.index("The last 40 diagnoses")
    assert high.index("The last 40 diagnoses") < high.index("What to change")


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_activities_are_told_apart_without_colour(glyphs: Glyphs) -> None:
    names = (
        *("computing", "launching", "waiting_for_data", "preparing_data", "copying", "synchronising", "communicating"),
        *("checkpointing", "compiling", "allocating", "other_host_work", "idle", "unattributed"),
    )
    (bar, *_) = account_rows([AccountShare(name, 1 / len(names)) for name in names], 80, glyphs)
    assert len(set(plain([bar]).strip())) == len(names)


def test_one_diagnosis_has_no_course() -> None:
    assert over_time((AccountPoint(1, "idle", {"idle": 1000}),), ViewOptions(), 80, 24) == []


def test_an_activity_of_a_newer_daemon_is_drawn_and_named() -> None:
    points = tuple(AccountPoint(n, "idle", {"dreaming": 1000}) for n in (1, 2))
    assert ". dreaming" in plain(over_time(points, ViewOptions(zone=UTC), 80, 24))


def test_every_key_is_in_the_help() -> None:
    text = plain(help_rows(120, UNICODE))
    for key in KEYS:
        assert key.help in text


# --------------------------------------------------------------------------- selection


def test_jobs_are_grouped_with_their_workers() -> None:
    first = jobs(live(8))[0]
    assert (first.pid, first.device_indices, [m.pid for m in first.members]) == (MAIN, (0,), [MAIN + 1])


def test_a_pid_that_proc_does_not_show_is_still_a_job() -> None:
    state = replace(live(1), infos={}, processes={})
    assert [job.pid for job in jobs(state)] == [MAIN]
    text = plain(screen(state, ViewOptions(view="processes"), 80, 24, now_ns=NOW_NS))
    assert "not visible in /proc" in text


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({}, "it has ended, or is of another PID namespace"),
        ({"containerised": True}, "which is not in this container: run gpuwatch on the host"),
        ({"proc_hides": ("hidepid=2",)}, "/proc is mounted with hidepid=2 and hides it: run gpuwatch as root"),
    ],
)
def test_why_a_process_cannot_be_seen_is_said_with_the_remedy(node: dict[str, Any], said: str) -> None:
    state = live(1)
    assert state.inventory is not None
    inventory = replace(state.inventory, node=replace(state.inventory.node, **{"containerised": False, **node}))
    state = replace(state, inventory=inventory, infos={}, processes={})
    text = plain(screen(state, ViewOptions(view="processes"), 80, 24, now_ns=NOW_NS))
    assert said in " ".join(text.split())


def test_the_pid_in_its_container_is_beside_the_process() -> None:
    state = live(1)
    state = replace(state, infos={**state.infos, MAIN: replace(state.infos[MAIN], container_pid=7)})
    assert "PID 7 in there" in plain(screen(state, ViewOptions(view="processes"), 80, 24, now_ns=NOW_NS))


def test_arrows_stop_at_the_first_and_the_last() -> None:
    state = live(8)
    options = move(state, ViewOptions(), -1)
    assert options.device == 0
    for _ in range(20):
        options = move(state, options, 1)
    assert options.device == 7


def test_selection_in_the_process_list_decides_what_is_diagnosed() -> None:
    state = live(2)
    options = ViewOptions(view="processes")
    for _ in range(3):
        options = move(state, options, 1)
    assert options.pid == process_order(state)[3]
    request = start_request(state, options, 7)
    assert request is not None
    assert (request.pid, request.device_index, request.request_id) == (MAIN + 1000, 1, 7)


def test_next_job_goes_round() -> None:
    state = live(2)
    options = next_job(state, ViewOptions(), 1)
    assert options.pid == MAIN + 1000
    assert next_job(state, options, 1).pid == MAIN


def test_the_selected_gpu_of_sixteen_is_in_sight() -> None:
    text = plain(drawn("live16", device=15, height=16))
    assert "▸15" in text
    assert "of 16" in text


def test_a_list_by_read_rate_has_the_heaviest_reader_first_and_those_that_are_unknown_last() -> None:
    state = replace(live(1), io_rates={MAIN + 1: IoRate(3_000.0, 0.0)})
    options = ViewOptions(view="processes", sort="read")
    assert process_order(state, options)[0] == MAIN + 1


# --------------------------------------------------------------------------- text


def test_a_command_line_cannot_reach_the_terminal() -> None:
    assert clean("a\x1b[31mb\u202ec\x07") == "a�[31mb�c�"
    assert "\x1b" not in plain(drawn("strange_names"))


@pytest.mark.parametrize("text", ["plain", "学習データ", "a学b習", "é", "🚀🚀🚀"])
@pytest.mark.parametrize("cells", range(8))
def test_padding_counts_cells_not_characters(text: str, cells: int) -> None:
    assert width_of(pad(text, cells)) == cells
    assert width_of(cut(text, cells)) <= cells
    assert width_of(cut_left(text, cells)) <= cells


def test_a_path_keeps_its_end() -> None:
    assert cut_left("/home/ada/project/train.py", 12) == "…ct/train.py"


def test_wrapping_loses_no_word() -> None:
    text = "Raise num_workers to 8, averyveryverylongwordindeed and set pin_memory"
    lines = wrap(text, 12)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(width_of(line) <= 12 for line in lines)
    assert wrap(text, 12, 2)[-1].endswith("…")


def test_rows_are_cut_and_filled_by_cells() -> None:
    row = (("学習", "a"), ("xyz", "b"))
    for cells in range(12):
        assert row_width(fit(row, cells)) == cells
        assert row_width(between(row, (("!", "c"),), cells)) == cells or cells == 0


def test_ascii_keeps_the_width() -> None:
    row = (("学…×·é", "a"),)
    assert plain([as_ascii(row)]) == "??~x|?"
    assert row_width(as_ascii(row)) == row_width(row)


def test_selection_is_marked_once() -> None:
    row = selected(selected((("x", "sm"),)))
    assert row == (("x", "sm@selected"),)


# --------------------------------------------------------------------------- long windows, hosts, processes


def test_the_windows_own_past_is_never_asked_for_twice() -> None:
    state = STATES["past"]
    assert series.request_for(state, 0, 3600) is None
    assert series.request_for(state, 0, 60) is None
    assert series.request_for(state, 1, 3600) is not None
    later = replace(state, tick_mono_ns=state.tick_mono_ns + 13 * SECOND)
    assert series.request_for(later, 0, 3600) is not None


def test_the_least_and_the_most_of_an_hour_are_written_not_only_drawn() -> None:
    text = plain(drawn("past", view="gpu", window_s=3600))
    assert "busy 15-100 %" in text
    assert "T" in next(line for line in text.splitlines() if line.startswith("held"))


def test_without_history_nothing_is_claimed_about_clocks() -> None:
    assert "nothing held" not in plain(drawn("live1", view="gpu", window_s=86_400))
    assert "is not known" in plain(drawn("live1", view="gpu", window_s=86_400))


def test_a_daemon_too_old_for_history_is_said() -> None:
    state = replace(live(1), past_refusal="not a gpuwatch request: unknown tag")
    text = plain(screen(state, ViewOptions(view="gpu", window_s=3600), 80, 24, now_ns=NOW_NS))
    assert "unknown tag" in text


def test_a_divided_gpu_is_not_counted_again_for_each_of_its_instances() -> None:
    text = plain(host_list.rows((STATES["mig_tree"],), ViewOptions(view="hosts"), 120, 10))
    assert " 43/282 " in text, "13.4 + 29.4 GiB of two cards"
    assert "781 W" in text
    assert re.search(r"● live +2 ", text), "two GPUs"


def test_what_a_host_loses_is_told_before_words_that_a_narrow_screen_cuts() -> None:
    text = plain(host_list.rows(fleet(), ViewOptions(view="hosts"), 80, 12))
    assert "✖ 88 % loader_too_few" in text
    assert "▲ driver not loaded" in text


def test_a_long_word_among_the_evidence_does_not_push_the_sources_off_the_screen() -> None:
    state = STATES["live1"]
    found = state.diagnoses[0]
    place = EvidenceRow(
        "workers' time goes to", "/home/ada/project/resnet/train.py:37 __getitem__", "", "stack samples"
    )
    verdict = replace(found.verdict, evidence=(*found.verdict.evidence, place))
    state = replace(state, diagnoses=(replace(found, findings=(verdict,)),))
    text = plain(screen(state, ViewOptions(view="diagnosis"), 80, 45, now_ns=NOW_NS))
    assert "stack samples (n=48), over 5.0 s" in text
    assert "train.py:37 __getitem__  stack samples" in text


def test_hosts_of_one_name_are_told_apart_by_where_they_are() -> None:
    first, second = (replace(live(1), endpoint=f"ssh://gpu{n}") for n in (1, 2))
    text = plain(host_list.rows((first, second), ViewOptions(view="hosts"), 80, 10))
    assert "ssh://gpu1 " in text
    assert "ssh://gpu2 " in text


def test_values_of_a_lost_host_do_not_look_like_readings() -> None:
    rows = host_list.rows((STATES["lost"],), ViewOptions(view="hosts", find=""), 120, 10)
    assert {role.removesuffix("@selected") for text, role in rows[-1] if "52" in text or "781" in text} == {"dim"}


def test_a_gpu_whose_instances_have_the_processes_is_told_so() -> None:
    assert "GPU 0: its MIG instances have the processes" in plain(drawn("mig_tree"))
    text = plain(drawn("mig_tree", view="processes"))
    assert "process 0" not in text
    assert "GPU 0: its MIG instances have the processes" in text


def test_hosts_without_contact_come_before_those_with_findings() -> None:
    hosts = fleet()
    names = [host_list.name_of(hosts[place]) for place in host_list.order(hosts, ViewOptions())]
    assert names[:2] == ["gpu-lost", "ssh://gpu-old"]
    assert names.index("gpu-starved") < names.index("gpu-ok")


def test_a_sum_of_memory_that_is_not_complete_is_no_number() -> None:
    text = plain(host_list.rows((STATES["absent"],), ViewOptions(view="hosts"), 120, 10))
    assert " n/a" in text


def test_a_reading_that_is_absent_sorts_last_and_not_as_zero() -> None:
    state = live(2)
    idle = replace(state.processes[MAIN], cpu_pct=0.0)
    blind = replace(state.processes[MAIN + 1], cpu_pct=Absent(Reason.NO_PERMISSION))
    state = replace(state, processes=state.processes | {MAIN: idle, MAIN + 1: blind})
    order = process_order(state, ViewOptions(sort="cpu"))
    assert order[-2:] == (MAIN, MAIN + 1)


def test_the_footer_says_how_to_quit_at_every_width() -> None:
    for width in range(60, 161):
        for view in VIEWS:
            assert "?" in plain(drawn("live1", width, view=view)[-1:])
            assert "quit" in plain(drawn("live1", width, view=view)[-1:]) or "diagnose" in plain(
                drawn("live1", width, view=view)[-1:]
            )
