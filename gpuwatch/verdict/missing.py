"""What should have been measured and was not: a probe on a device, or a whole device.

Owns: MISSING rows of a baseline. Refuses: demands of a policy (demands.py), runs that failed: those are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gpuwatch.model import ProbeResult
from gpuwatch.verdict import baseline
from gpuwatch.verdict.policy import Policy
from gpuwatch.verdict.verdicts import Row, Verdict, placed, row

_CPU = "cpu"


def rows(known: Sequence[ProbeResult], tried: Sequence[ProbeResult], policy: Policy, whole_host: bool) -> list[Row]:
    """Probes that the baseline has for a device that was measured, or is lost, without any result now.

    ``whole_host``: the baseline is of this very host and every device was to be measured.
    """
    found: list[Row] = []
    here: dict[str, list[ProbeResult]] = {}
    for run in tried:
        here.setdefault(_seat(run), []).append(run)
    for seat, runs in here.items():
        done = {run.probe for run in runs}
        for probe, old in {old.probe: old for old in _expected(known, seat, runs)}.items():
            if probe not in done:
                reason, level = "in the baseline, not run now", policy.rule(probe).missing
                told = {"device": runs[-1].device, "device_uuid": runs[-1].device_uuid or old.device_uuid}
                found.append(msgspec.structs.replace(row(probe, "", Verdict.MISSING, reason, level=level), **told))
    gone = {_seat(old): old for old in known if _seat(old) not in (*here, _CPU)} if whole_host else {}
    reason = "the device is in this host's baseline and not here now"
    for old in gone.values():
        level = policy.rule(old.probe).missing
        found.append(placed(row(old.probe, "", Verdict.MISSING, reason, level=level), old))
    return found


def unknown(probes: Iterable[str]) -> list[Row]:
    """Probes that were asked for by name, which nobody has anything about."""
    reason = "there is no result of it, and none in the baseline"
    return [row(probe, "", Verdict.NOT_AVAILABLE, reason) for probe in sorted(probes)]


def _expected(known: Sequence[ProbeResult], seat: str, runs: Sequence[ProbeResult]) -> list[ProbeResult]:
    """What the baseline has of this very device, else of others of its kind: as for the figures."""
    name = next((run.device_name for run in runs if run.device_name), "")
    same = [old for old in known if _seat(old) == seat and (seat != _CPU or name in ("", old.device_name))]
    return same or [old for old in known if name and old.device_name == name]


def _seat(run: ProbeResult) -> str:
    """Where it ran. A run that failed on the CPU does not tell its name, and a machine has one CPU."""
    return _CPU if run.device.startswith(_CPU) else baseline.place(run)[1]
