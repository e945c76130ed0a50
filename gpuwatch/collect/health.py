"""The slow readings of one GPU: health, limits, modes, engines, throttling.

Owns: which calls make a DeviceHealth, in which tier each group is, when a counter's growth is a rate. Refuses:
importing pynvml (the binding is passed in), threads, judging.

Groups run after the tick's sample is out, so that none of them delays it, and the longest waiting first until
``BUDGET_NS`` of driver time is spent; the rest waits for the next tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from gpuwatch.collect.error_growth import ErrorGrowth
from gpuwatch.collect.field_batch import FieldBatch
from gpuwatch.collect.field_ids import COUNTERS, LIMITS, LINK_ERRORS, MOVING, THROTTLES, Version
from gpuwatch.collect.gpm_engines import GpmEngines
from gpuwatch.collect.health_calls import HealthCalls
from gpuwatch.collect.nvlink import Nvlink
from gpuwatch.collect.nvml_calls import (
    MAX_MHZ,
    MAX_MILLIWATT,
    MAX_PCT,
    MAX_TEMP_C,
    Calls,
    Clock,
    GoneError,
    scaled,
    within,
)
from gpuwatch.collect.process_util import ProcessUtilReader
from gpuwatch.collect.tiers import Pace, Tier
from gpuwatch.collect.topology import peer_links
from gpuwatch.model import NOT_READ, NOT_SUPPORTED, Absent, DeviceHealth, Int, Num, Reason, value_or

BUDGET_NS: Final = 6_000_000
"""Driver time for one round. Not in the first, in which everything is asked once (about 30 ms on an H200)."""

_PER_PROCESS: Final = "process utilization"
_WIDE: Final = 1 << 32
_MAX_SHARE: Final = 1.2
"""Of a throttle counter: it is refreshed a little out of step with our clock; more is another unit or another id."""
_KIB: Final = 1024

Values = dict[str, Any]


class Situation(NamedTuple):
    """What the groups need to know about the moment."""

    mono_ns: int
    loaded: bool
    """The GPU is busy: the PCIe link can be judged."""
    pids: tuple[int, ...] = ()
    """Processes that NVML lists on it."""
    pids_absent: Absent | None = None
    """Why that list cannot be trusted."""
    newest_us: int = 0
    """A recent stamp of the driver's clock; 0 when none is known."""


class _Group(NamedTuple):
    """Calls that are made together."""

    name: str
    pace: Pace
    read: Callable[[Situation], Mapping[str, Any]]


class Growth:
    """Rates from counters: a counter that fell was reset, and its rate is then not known for one round."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._before_ns = 0
        self.window_ns = 0
        """Time between the last two rounds, 0 in the first."""

    def take(self, counters: Mapping[str, Int], now_ns: int) -> dict[str, Num]:
        """Growth of each counter since the round before."""
        self.window_ns = now_ns - self._before_ns if self._before_ns else 0
        grown = {name: self._grown(name, value) for name, value in counters.items()}
        self._before = {name: value for name, value in counters.items() if not isinstance(value, Absent)}
        self._before_ns = now_ns
        return grown

    def _grown(self, name: str, value: Int) -> Num:
        if isinstance(value, Absent):
            return value
        before = self._before.get(name)
        if before is None or self.window_ns <= 0:
            return NOT_READ
        return value - before if value >= before else Absent(Reason.NOT_READ, "the counter was reset")


class HealthReader:
    """Slow readings of one GPU; remembers what this GPU does not have. Not thread-safe: its sampler owns it."""

    def __init__(self, calls: Calls, handle: Any, index: int, driver: Version, clock: Clock) -> None:
        self._calls = calls
        self._index = index
        self._clock = clock
        self._values: Values = {}
        self._moving = FieldBatch(calls, handle, MOVING, driver)
        self._counters = FieldBatch(calls, handle, COUNTERS, driver)
        self._limits = FieldBatch(calls, handle, LIMITS, driver)
        self._q = HealthCalls(calls, handle)
        self._nvlink = Nvlink(calls, handle, driver)
        self.gpm_engines: GpmEngines | None = None
        """What GPM says of the engines, for devices whose own calls say nothing."""
        self._growth, self._energy = Growth(), Growth()
        self._errors = ErrorGrowth()
        self._wide: set[str] = set()
        self.processes = ProcessUtilReader(calls, handle)
        self._groups = (
            _Group("fields", Pace(Tier.MEDIUM), self._read_moving),
            _Group("engines", Pace(Tier.MEDIUM), self._read_engines),
            _Group("link", Pace(Tier.MEDIUM), self._read_link),
            _Group(_PER_PROCESS, Pace(Tier.MEDIUM), self._read_processes),
            _Group("energy", Pace(Tier.SLOW), self._read_energy),
            _Group("temperature margin", Pace(Tier.SLOW), self._read_margin),
            _Group("fans", Pace(Tier.SLOW), self._read_fans),
            _Group("clocks", Pace(Tier.SLOW), self._read_clocks),
            _Group("BAR1", Pace(Tier.SLOW), self._read_bar1),
            _Group("counters", Pace(Tier.RARE), self._read_counters),
            _Group("NVLink state", Pace(Tier.RARE), self._read_links),
            *(
                _Group(f"NVLink field {fields[0]}", Pace(Tier.RARE), partial(self._read_link_errors, name, fields))
                for name, fields in LINK_ERRORS.items()
            ),
            _Group("fabric", Pace(Tier.RARE), self._read_fabric),
            _Group("remapped rows", Pace(Tier.RARE), self._read_remapped),
            _Group("modes", Pace(Tier.RARE), self._read_modes),
            _Group("limits", Pace(Tier.ONCE), self._read_limits),
            _Group("temperature limits", Pace(Tier.ONCE), self._read_thresholds),
            _Group("identity", Pace(Tier.ONCE), self._read_identity),
            _Group("topology", Pace(Tier.ONCE), lambda _: {"peers": peer_links(calls, handle, index)}),
        )
        self._waiting: dict[str, int] = {}
        self._first = True

    def read(self, situation: Situation, *, low: bool = False) -> DeviceHealth | None:
        """All that is known after the groups whose turn it is; None when it was nobody's turn.

        Raises GoneError when the GPU no longer answers.
        """
        now_ns = situation.mono_ns
        # What a GPU does is what its only process does: its share need not be asked as often as of several.
        alone = len(situation.pids) < 2
        due = [g for g in self._groups if g.pace.due(now_ns, low=low or (alone and g.name == _PER_PROCESS))]
        for group in due:
            self._waiting.setdefault(group.name, now_ns)
        due.sort(key=lambda group: self._waiting[group.name])
        began_ns = self._calls.spent_ns
        for done, group in enumerate(due):
            before_ns = self._calls.spent_ns
            if done and not self._first and before_ns - began_ns >= BUDGET_NS:
                break
            values = self._guarded(group, situation)
            self._values.update(values)
            self._errors.take(values, now_ns)
            group.pace.ran(now_ns, self._calls.spent_ns - before_ns, unsettled=any(map(_may_pass, values.values())))
            self._waiting.pop(group.name, None)
        if not due:
            return None
        self._first = False
        slowed = tuple(group.name for group in self._groups if group.pace.slowed)
        grown, over_ns = self._errors.grown(now_ns), self._errors.window_ns(now_ns)
        return DeviceHealth(
            self._index, now_ns, **self._values, slowed_calls=slowed, grown=grown, grown_window_ns=over_ns
        )

    def _guarded(self, group: _Group, situation: Situation) -> Mapping[str, Any]:
        """A bug or an odd binding in one group costs that group, not the others."""
        try:
            return group.read(situation)
        except GoneError:
            raise
        except Exception as exc:
            self._calls.odd(group.name, exc)
            return {}

    # ------------------------------------------------------------------ every 2 s

    def _read_moving(self, situation: Situation) -> Values:
        read = self._moving.read()
        names = [name for name in read if name.startswith("throttle_") or name.endswith(("_bytes", "_kib"))]
        grown = self._growth.take({name: read[name] for name in names}, self._clock())
        window_ns = self._growth.window_ns
        self._wide.update(name for name in names if value_or(read[name], 0) >= _WIDE)
        shares = {f"throttle_{name}_share": _share(grown[f"throttle_{name}"], window_ns) for name in THROTTLES}
        return {
            "power_avg_w": scaled(read["power_avg_mw"], 1000),
            "power_instant_w": scaled(read["power_instant_mw"], 1000),
            "power_memory_w": scaled(read["power_memory_mw"], 1000),
            "mem_temp_c": read["mem_temp_c"],
            "throttle_window_ns": window_ns,
            **shares,
            "pcie_rx_bytes_per_s": self._pcie_rate("pcie_rx_bytes", grown, window_ns),
            "pcie_tx_bytes_per_s": self._pcie_rate("pcie_tx_bytes", grown, window_ns),
            "nvlink_rx_bytes_per_s": _rate(grown["nvlink_rx_kib"], window_ns, _KIB),
            "nvlink_tx_bytes_per_s": _rate(grown["nvlink_tx_kib"], window_ns, _KIB),
        }

    def _pcie_rate(self, name: str, grown: Mapping[str, Num], window_ns: int) -> Num:
        rate = _rate(grown[name], window_ns)
        # Some counters have 32 bits, which a busy link fills in 80 ms: one that never was larger tells nothing.
        unsure = not isinstance(rate, Absent) and name not in self._wide
        return Absent(Reason.NOT_FOUND, "the byte counter may wrap between readings") if unsure else rate

    def _read_engines(self, _: Situation) -> Values:
        engines = ("encoder", "decoder", "jpeg", "ofa")
        reads = (self._q.encoder, self._q.decoder, self._q.jpeg, self._q.ofa)
        values: Values = {f"{name}_util_pct": within(q.read(), MAX_PCT) for name, q in zip(engines, reads, strict=True)}
        if self.gpm_engines is not None and all(isinstance(value, Absent) for value in values.values()):
            # Of the window that the last question asked for: some two seconds ago.
            values |= {name: _whole(value) for name, value in self.gpm_engines.values.items() if value != NOT_READ}
            self.gpm_engines.wanted = True
        return values

    def _read_link(self, situation: Situation) -> Values:
        return {
            "performance_state": within(self._q.pstate.read(), 15),
            "pcie_gen": within(self._q.pcie_gen.read(), 16),
            "pcie_width": within(self._q.pcie_width.read(), 32),
            "pcie_under_load": situation.loaded,
        }

    def _read_processes(self, situation: Situation) -> Values:
        if situation.pids_absent is not None:
            return {"process_utils": (), "process_utils_absent": situation.pids_absent}
        utils, absent = self.processes.read(situation.pids, situation.newest_us)
        return {"process_utils": utils, "process_utils_absent": absent}

    # ------------------------------------------------------------------ every 5 s

    def _read_energy(self, _: Situation) -> Values:
        energy = self._q.energy.read()
        grown = self._energy.take({"energy": energy}, self._clock())["energy"]
        window_ns = self._energy.window_ns
        power = _rate(grown, window_ns, 1e-3)
        if not isinstance(power, Absent) and power * 1000 > MAX_MILLIWATT:
            power = Absent(Reason.OUT_OF_RANGE, f"{power:g} W")
        return {"energy_mj": energy, "energy_power_w": power, "energy_window_ns": window_ns}

    def _read_margin(self, _: Situation) -> Values:
        margin = self._q.margin.read()
        below = not isinstance(margin, Absent) and margin < -MAX_TEMP_C
        return {"temp_margin_c": Absent(Reason.OUT_OF_RANGE, str(margin)) if below else within(margin, MAX_TEMP_C)}

    def _read_clocks(self, _: Situation) -> Values:
        return {
            "graphics_clock_mhz": within(self._q.graphics_clock.read(), MAX_MHZ),
            "video_clock_mhz": within(self._q.video_clock.read(), MAX_MHZ),
        }

    def _read_fans(self, _: Situation) -> Values:
        return {"fan_pct": self._q.fastest_fan()}

    def _read_bar1(self, _: Situation) -> Values:
        bar1 = self._q.bar1.read()
        if isinstance(bar1, Absent):
            return {"bar1_total_bytes": bar1, "bar1_used_bytes": bar1}
        total = int(bar1.bar1Total)
        return {"bar1_total_bytes": total, "bar1_used_bytes": within(int(bar1.bar1Used), total)}

    # ------------------------------------------------------------------ every 30 s and once

    def _read_counters(self, _: Situation) -> Values:
        return dict(self._counters.read())

    def _read_links(self, _: Situation) -> Values:
        return {"nvlink_links_down": self._nvlink.down(self._values.get("nvlink_links", NOT_READ))}

    def _read_link_errors(self, name: str, fields: tuple[int, ...], _: Situation) -> Values:
        return {name: self._nvlink.total(fields, self._values.get("nvlink_links", NOT_READ))}

    def _read_fabric(self, _: Situation) -> Values:
        fabric = self._q.fabric.read()
        names = ("fabric_state", "fabric_status", "fabric_health")
        return dict.fromkeys(names, fabric) if isinstance(fabric, Absent) else dict(zip(names, fabric, strict=True))

    def _read_remapped(self, _: Situation) -> Values:
        rows = self._q.remapped.read()
        names = ("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failed")
        return dict.fromkeys(names, rows) if isinstance(rows, Absent) else dict(zip(names, rows, strict=True))

    def _read_modes(self, _: Situation) -> Values:
        return {
            "ecc_enabled": self._q.ecc.read(),
            "persistence_mode": self._q.persistence.read(),
            "compute_mode": self._q.compute_mode.read(),
            "mig_enabled": self._q.mig.read(),
            "power_limit_w": scaled(within(self._q.power_limit.read(), MAX_MILLIWATT), 1000),
        }

    def _read_limits(self, _: Situation) -> Values:
        read = self._limits.read()
        watts = ("power_limit_min", "power_limit_max", "power_limit_default")
        offsets = ("tlimit_shutdown_c", "tlimit_slowdown_c", "tlimit_mem_max_c", "tlimit_gpu_max_c")
        as_they_are = (*offsets, "c2c_links", "c2c_link_mbytes_per_s")
        return {f"{name}_w": scaled(read[f"{name}_mw"], 1000) for name in watts} | {n: read[n] for n in as_they_are}

    def _read_thresholds(self, _: Situation) -> Values:
        # 2.8 ms a call: only where the limits are not told as offsets.
        told = not isinstance(self._values.get("tlimit_slowdown_c"), Absent)
        reads = self._q.thresholds.items()
        return {name: NOT_SUPPORTED if told else within(query.read(), MAX_TEMP_C) for name, query in reads}

    def _read_identity(self, _: Situation) -> Values:
        q = self._q
        return {
            "sm_clock_max_mhz": within(q.sm_max.read(), MAX_MHZ),
            "mem_clock_max_mhz": within(q.mem_max.read(), MAX_MHZ),
            "reasons_supported": q.reasons_supported.read(),
            "pcie_gen_max": within(q.pcie_gen_max.read(), 16),
            "pcie_width_max": within(q.pcie_width_max.read(), 32),
            "virtualization": q.virtualization.read(),
            "confidential_compute": q.confidential.read(),
            "cpu_affinity": q.affinity.read(),
        }


def _may_pass(reading: object) -> bool:
    return isinstance(reading, Absent) and reading.reason not in (Reason.NOT_SUPPORTED, Reason.OUT_OF_RANGE)


def _whole(reading: Num) -> Int:
    return reading if isinstance(reading, Absent) else round(reading)


def _share(grown_ns: Num, window_ns: int) -> Num:
    if isinstance(grown_ns, Absent):
        return grown_ns
    share = grown_ns / window_ns
    return min(1.0, share) if share <= _MAX_SHARE else Absent(Reason.OUT_OF_RANGE, f"{share:.3g} of the time")


def _rate(grown: Num, window_ns: int, factor: float = 1.0) -> Num:
    """Per second."""
    return grown if isinstance(grown, Absent) else grown * factor * 1e9 / window_ns
