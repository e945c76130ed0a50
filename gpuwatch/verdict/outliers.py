"""The same probes on many nodes: which node is worse than the others of its kind.

Owns: the verdict of each node. Refuses: files.

A node is compared with the median of its peers, GPUs of the same name measured under the same hard conditions. It is
an outlier when it is worse by more than the tolerance and by more than 3.5 robust deviations. With few nodes the
deviation is poor, so the tolerance, 5 % at least, is what counts: healthy GPUs of one node differ by that much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec
from msgspec import Struct

from gpuwatch.model import ProbeResult
from gpuwatch.verdict import baseline, fingerprint, quantities
from gpuwatch.verdict.check import failures
from gpuwatch.verdict.statistics import mad
from gpuwatch.verdict.verdicts import Judgement, Level, Row, Verdict, row

LEAST_PEERS = 4
"""With fewer no one can say which of them is the odd one."""
ROBUST = 3.5
SPREAD = 0.05


class Node(Struct, frozen=True):
    """What one node reported."""

    name: str
    results: tuple[ProbeResult, ...]


class _Seat(Struct, frozen=True):
    """One device of one node, with the newest of its good runs first in line."""

    node: str
    runs: list[ProbeResult]

    @property
    def label(self) -> str:
        run = self.runs[-1]
        return f"{self.node} {run.device}"


def outliers(
    nodes: Sequence[Node],
    max_regression: float | None = None,
    title: str = "",
    unread: Mapping[str, str] | None = None,
) -> Judgement:
    """Judge every device of every node against its peers. ``unread``: files without a result, and why not."""
    rows = [row(name, "", Verdict.ERROR, reason) for name, reason in (unread or {}).items()]
    kinds: dict[tuple[str, str, str], list[_Seat]] = {}
    for node in nodes:
        for runs in baseline.grouped(node.results).values():
            rows += [_at(one, f"{node.name} {runs[-1].device}") for one in failures(runs)]
            good, _refused = baseline.accepted(runs)
            if good:
                key = (good[0].probe, good[0].device_name, fingerprint.fingerprint(good[-1:]).digests[fingerprint.HARD])
                kinds.setdefault(key, []).append(_Seat(node.name, good))
    notes = []
    for (probe, device_name, _hard), seats in kinds.items():
        if len(seats) < LEAST_PEERS:
            labels = ", ".join(seat.label for seat in seats)
            notes.append(f"{probe} on {device_name}: {len(seats)} of {LEAST_PEERS} peers that are needed ({labels})")
            continue
        rows += _kind(probe, seats, max_regression)
    rows += _absent(nodes, kinds)
    return Judgement(title, tuple(rows), notes=tuple(notes))


def _kind(probe: str, seats: Sequence[_Seat], max_regression: float | None) -> list[Row]:
    rows = []
    values = {value.name: value for seat in seats for value in quantities.judged(seat.runs[-1])}
    for name, value in values.items():
        figures = {seat.label: baseline.medians(seat.runs, name) for seat in seats}
        present = {label: median(found) for label, found in figures.items() if found}
        scores = {label: quantities.score(figure, value.higher_is_better) for label, figure in present.items()}
        centre, deviation = median(scores.values()), mad(list(scores.values()))
        tolerance = max_regression or max(SPREAD, quantities.tolerance(probe, name, seats[0].runs[-1].device))
        limit = max(math.log1p(tolerance), ROBUST * deviation)
        for seat in seats:
            if seat.label not in scores:
                reason = f"{len(present)} of {len(seats)} peers have it"
                rows.append(_at(row(probe, name, Verdict.MISSING, reason, level=Level.WARN), seat.label, seat))
                continue
            effect = scores[seat.label] - centre
            bad = effect < -limit
            rows.append(
                _at(
                    Row(
                        *(probe, name, Verdict.OUTLIER if bad else Verdict.SAME),
                        Level.OK if not bad else Level.CRITICAL if effect < -2 * limit else Level.WARN,
                        unit=value.unit,
                        higher_is_better=value.higher_is_better,
                        before=median(present.values()),
                        after=present[seat.label],
                        improvement=quantities.share(effect),
                        tolerance=quantities.share(limit),
                        n_before=len(present),
                        n_after=len(figures[seat.label]),
                        reason=f"{-quantities.share(effect):.1%} worse than the middle of {len(present)}"
                        if bad
                        else "",
                    ),
                    seat.label,
                    seat,
                )
            )
    return rows


def _absent(nodes: Sequence[Node], kinds: Iterable[tuple[str, str, str]]) -> list[Row]:
    """Probes that most nodes have and one has not even tried: a node that silently measures less is not healthy."""
    rows = []
    for probe in sorted({probe for probe, _name, _hard in kinds}):
        without = [node for node in nodes if all(result.probe != probe for result in node.results)]
        if 0 < len(without) < len(nodes) / 2:
            reason = f"{len(nodes) - len(without)} of {len(nodes)} nodes have it"
            rows += [_at(row(probe, "", Verdict.MISSING, reason, level=Level.WARN), node.name) for node in without]
    return rows


def _at(one: Row, label: str, seat: _Seat | None = None) -> Row:
    uuid = seat.runs[-1].device_uuid if seat else one.device_uuid
    return msgspec.structs.replace(one, device=label, device_uuid=uuid)
