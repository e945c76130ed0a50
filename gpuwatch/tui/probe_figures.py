"""The figures of one probe result: value, baseline, change with its interval, verdict; and what is published.

Owns: the lines. Refuses: judging (the verdicts come from the daemon) and making a verdict of a published figure.
"""

from __future__ import annotations

from gpuwatch.client.state import NodeState
from gpuwatch.model import ProbeResult, ProbeValue
from gpuwatch.tui.text import Glyphs, Row, Span, between, clean, fit, pad, wrap
from gpuwatch.units import pct_text
from gpuwatch.verdict.expectations import expectation
from gpuwatch.wire import ProbeVerdict, ValueVerdict

_WIDE = 100
"""Columns from which the spread of the samples fits beside a verdict."""
_NAMES = 21
"""Longest name at 80 columns beside a verdict; figures and words take the rest."""
_LEVEL_ROLES = {"ok": "ok", "warn": "warn", "critical": "crit", "unknown": "warn"}
_LEAST_VALUES = 3
_HOW = 'no baseline: gpuwatch probe baseline --out FILE, then probes.baseline = "FILE"'


def rows(
    state: NodeState, result: ProbeResult, verdict: ProbeVerdict | None, width: int, room: int, glyphs: Glyphs
) -> list[Row]:
    """At most ``room`` lines; when they are few, figures first, then what is published, then notes."""
    head: list[Row] = []
    if result.message:
        head += [((f" {line}", "warn"),) for line in wrap(clean(result.message), width - 2, 3, glyphs.ellipsis)]
    head += baseline_rows(state, verdict, width, glyphs)
    judged = {v.value: v for v in verdict.values if v.value} if verdict else {}
    figures = _judged(result, judged, width, glyphs) if judged else _plain(result, width, glyphs)
    worst = verdict.values[0] if verdict and verdict.values else None
    tail: list[Row] = []
    if worst is not None and worst.value and worst.reason and width < _WIDE:
        why = wrap(clean(f"{worst.value}: {worst.reason}"), width - 2, 2, glyphs.ellipsis)
        tail += [((f" {line}", word(worst, glyphs)[1]),) for line in why]
    tail += _published(result, width, glyphs)
    for note in result.notes:
        tail += [((f" {line}", "dim"),) for line in wrap(clean(note), width - 2, 2, glyphs.ellipsis)]
    fits = max(_LEAST_VALUES, room - len(head) - min(len(tail), max(3, room // 3)))
    if len(figures) > fits:
        left = len(figures) - fits + 1
        figures = [*figures[: fits - 1], ((f"   {left} more on a larger screen", "dim"),)]
    return [*head, *figures, *tail][: max(0, room)]


def baseline_rows(state: NodeState, verdict: ProbeVerdict | None, width: int, glyphs: Glyphs) -> list[Row]:
    """What the result was judged against, or why it was not, or how to make that possible."""
    if verdict is None:
        text, role = _HOW, "dim"
        if state.baseline:
            text, role = f"no verdict; the baseline is {state.baseline}", "dim"
        if state.baseline_note:
            text, role = f"{glyphs.warning} no verdict, the baseline cannot be used: {state.baseline_note}", "warn"
        return [((f" {line}", role),) for line in wrap(clean(text), width - 2, 3, glyphs.ellipsis)]
    whole = [v for v in verdict.values if not v.value]
    out: list[Row] = []
    for value in whole:
        text = f" {word(value, glyphs)[0]} {value.reason}".rstrip()
        out += [((f" {line}", word(value, glyphs)[1]),) for line in wrap(clean(text), width - 2, 2, glyphs.ellipsis)]
    if len(whole) < len(verdict.values):
        counts: dict[str, int] = {}
        for value in verdict.values:
            counts[value.verdict] = counts.get(value.verdict, 0) + 1
        said = ", ".join(f"{number_} {name}" for name, number_ in counts.items())
        spans: list[Span] = [
            (f" {_sign(verdict.level, glyphs)} {said}", _LEVEL_ROLES.get(verdict.level, "dim")),
            (f"  against {clean(state.baseline)}", "dim"),
        ]
        out.append(fit(spans, width, glyphs))
    return out


def word(value: ValueVerdict, glyphs: Glyphs) -> Span:
    """The verdict as a sign and a word, so that colour is never needed."""
    return f"{_sign(value.level, glyphs)} {value.verdict}", _LEVEL_ROLES.get(value.level, "dim")


def number(value: ProbeValue) -> str:
    """Three digits and the unit."""
    return f"{_digits(value.median)} {value.unit}".strip()


def _digits(figure: float) -> str:
    return f"{figure:.0f}" if abs(figure) >= 100 else f"{figure:.3g}"


def _sign(level: str, glyphs: Glyphs) -> str:
    signs = {"ok": glyphs.live, "warn": glyphs.warning, "critical": glyphs.critical, "unknown": "?"}
    return signs.get(level, glyphs.waiting)


def _plain(result: ProbeResult, width: int, glyphs: Glyphs) -> list[Row]:
    names = min(max((len(v.name) for v in result.values), default=0), width // 2)
    out: list[Row] = []
    for value in result.values:
        left: list[Span] = [
            (f"   {pad(clean(value.name), names, ellipsis=glyphs.ellipsis)}  ", "text"),
            (f"{number(value):>16}", "title"),
        ]
        out.append(between(left, ((f"{_spread(value)} ", "dim"),), width))
    return out


def _spread(value: ProbeValue) -> str:
    return f"{value.p20:.3g}..{value.p80:.3g}  n={value.n}"


def _judged(result: ProbeResult, judged: dict[str, ValueVerdict], width: int, glyphs: Glyphs) -> list[Row]:
    """The worst first, as the daemon has sorted them; then figures that are shown and not judged."""
    measured = {value.name: value for value in result.values}
    order = [*judged, *(name for name in measured if name not in judged)]
    names = min(max(len(name) for name in order), _NAMES if width < _WIDE else width // 3)
    heads = (f"{'now':>14}", f"{'baseline':>9}", f"{'change':>8}", f"  {'95 % interval':<16}")
    out: list[Row] = [fit([(f" {pad('', names)}{''.join(heads)}verdict", "dim")], width, glyphs)]
    for name in order:
        value, verdict = measured.get(name), judged.get(name)
        spans: list[Span] = [
            (f" {pad(clean(name), names, ellipsis=glyphs.ellipsis)}", "text"),
            (f"{number(value) if value else 'n/a':>14}", "title"),
        ]
        if verdict is not None:
            spans += [(_change(verdict), "text"), word(verdict, glyphs)]
            if verdict.reason and width >= _WIDE:
                spans.append((f"  {clean(verdict.reason)}", "dim"))
        else:
            spans.append((f"{'':<35}not judged", "dim"))
        tail: list[Span] = [(f" {_spread(value)} ", "dim")] if value and width >= _WIDE else []
        out.append(between(spans, tail, width) if tail else fit(spans, width, glyphs))
    return out


def _change(verdict: ValueVerdict) -> str:
    before = "n/a" if verdict.before is None else _digits(verdict.before)
    change, interval = "n/a", ""
    if verdict.improvement is not None:
        change = f"{_percent(verdict.improvement)} %"
    if verdict.low is not None and verdict.high is not None:
        interval = f"{_percent(verdict.low)} to {_percent(verdict.high)}"
    return f"{before:>9}{change:>8}  {interval:<16}"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f}" if abs(share) < 1 else f"{100 * share:+.0f}"


def _published(result: ProbeResult, width: int, glyphs: Glyphs) -> list[Row]:
    """What others have published for this GPU, each source once with the figures it is about."""
    groups: dict[str, list[str]] = {}
    for value in result.values:
        known = expectation(result.probe, value.name, result.device_name)
        if known is not None and known.typical:
            about = f"{known.typical:g} {known.unit} ({known.source})"
            groups.setdefault(about, []).append(f"{value.name} {pct_text(100 * value.median / known.typical)}")
    if not groups:
        return []
    out: list[Row] = [((" published for this GPU: information, no verdict", "dim"),)]
    for about, here in groups.items():
        text = clean(f"{about}; here {', '.join(here)}")
        out += [((f"   {line}", "dim"),) for line in wrap(text, width - 4, 2, glyphs.ellipsis)]
    return out
