"""Raw evidence of a job, as JSON lines of what was read, to a gpuwatch recording.

    python tests/tools/convert_raw.py IN.jsonl.gz OUT.gwrec

The input is gzipped JSON lines ``{"t": unix seconds, "k": kind, …}``: ``meta`` (pid of the job), ``nvml`` (GPM
between two readings, NVML values, process utilization), ``proc`` (raw ``/proc/PID`` texts), ``sys`` (raw host texts),
``stack`` and ``wstack`` (threads of the main process and of its children), ``native`` (collapsed stacks with native
frames). Everything else in it, the job's own result too, is left out: the diagnosis must not see it.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpuwatch.collect import proc_parse as parse
from gpuwatch.collect.native_look import parse_collapsed
from gpuwatch.errors import GpuwatchError, InputNotFoundError, RecordingError, UsageError
from gpuwatch.model import (
    NOT_READ,
    NOT_SUPPORTED,
    Absent,
    CgroupSample,
    CoreGroup,
    Device,
    DeviceHealth,
    DeviceProcess,
    DeviceSample,
    Frame,
    HostSample,
    Int,
    Inventory,
    NodeInfo,
    Num,
    Observation,
    Pressure,
    ProcessInfo,
    ProcessSample,
    ProcessTick,
    ProcessUtil,
    Reason,
    Role,
    StackSample,
    ThreadStack,
)
from gpuwatch.replay.format import Writer

Row = dict[str, Any]
TICK_NS = 10_000_000
"""One USER_HZ tick, in which /proc counts CPU time."""
NATIVE_BURST_S = 3.0
GROUP_NS = 100_000_000
"""Processes read within this time are one tick."""
_GPM = {
    "graphics_util": "busy_pct", "sm_util": "sm_active_pct", "sm_occupancy": "sm_occupancy_pct",
    "any_tensor_util": "tensor_active_pct", "fp64_util": "fp64_active_pct", "fp32_util": "fp32_active_pct",
    "fp16_util": "fp16_active_pct", "dram_bw_util": "dram_active_pct",
}  # fmt: skip
_GPM_MIB = {"pcie_rx_per_sec": "pcie_rx_bytes_per_s", "pcie_tx_per_sec": "pcie_tx_bytes_per_s"}


def rows(path: Path) -> list[Row]:
    """The lines of the file. Raises InputNotFoundError, RecordingError."""
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            found = [json.loads(line) for line in file if line.strip()]
            return [row for row in found if isinstance(row, dict)]
    except FileNotFoundError:
        raise InputNotFoundError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError) as exc:
        raise RecordingError(f"{path}: not gzipped JSON lines ({exc})") from None


class Converter:
    """One file. Times become nanoseconds since the first line, far from zero so that differences stay positive."""

    def __init__(self, lines: list[Row]) -> None:
        meta = next((r for r in lines if r.get("k") == "meta"), None)
        if meta is None or "pid" not in meta:
            raise RecordingError("no meta line with the pid of the job")
        self.lines = [r for r in lines if isinstance(r.get("t"), (int, float))]
        self.left_out = len(lines) - len(self.lines)
        """Lines that lack what they should hold: a cut reading is none, and takes no other with it."""
        self.main_pid = int(meta["pid"])
        self.start_s = min((float(r["t"]) for r in self.lines), default=0.0)
        self._gpm_at: float | None = None
        self._memory: Int = NOT_READ
        self._temperature: Int = NOT_READ
        self._processes: tuple[DeviceProcess, ...] = ()
        self._util_seen_us = 0
        self._cpu: dict[int, parse.CpuTimes] = {}
        self._pressure: dict[str, tuple[float, parse.PressureTotals]] = {}
        self._cpu_at: dict[tuple[int, int], tuple[float, int]] = {}
        self._told: set[tuple[int, int]] = set()
        self._cgroup: CgroupSample | None = None
        self._gpu_pids = {int(p[0]) for r in lines if r.get("k") == "nvml" for p in r.get("procs") or ()}

    def observations(self) -> Iterator[Observation]:
        """In the order of the file; processes that were read together as one tick."""
        yield self._inventory()
        group: list[Row] = []
        for row in self.lines:
            kind = row.get("k")
            if group and (kind != "proc" or self._ns(row) - self._ns(group[0]) > GROUP_NS):
                yield from self._tick(group)
                group = []
            if kind == "proc":
                group.append(row)
            else:
                yield from self._one(str(kind), row)
        if group:
            yield from self._tick(group)

    def _one(self, kind: str, row: Row) -> Sequence[Observation]:
        """What a line of its own says; nothing of one that is cut or of an unknown kind."""
        single = {"sys": self._host, "stack": self._stack, "wstack": self._stack}
        if kind == "native":
            found = _tried(lambda: tuple(self._native(row)))
        elif kind == "nvml":
            found = _tried(lambda: (self._device(row), *(_tried(lambda: tuple(self._health(row))) or ())))
        elif kind in single:
            found = _tried(lambda: (single[kind](row),))
        else:
            return ()
        self.left_out += found is None
        return found or ()

    def _ns(self, row: Row) -> int:
        return 10**12 + round((float(row["t"]) - self.start_s) * 1e9)

    def _inventory(self) -> Inventory:
        """What the files say of the machine: its CPUs and memory. The card is known to be an H200."""
        system = next((r for r in self.lines if r.get("k") == "sys"), {})
        cpus = len(_tried(lambda: parse.parse_cpu_lines(system["stat"].encode())) or ())
        memory = _tried(lambda: parse.parse_meminfo(system["meminfo"].encode())["MemTotal"])
        first = next((r for r in self.lines if r.get("k") == "nvml" and r.get("mem")), None)
        total, reserved = (first["mem"][0], first["mem"][1]) if first else (NOT_READ, NOT_READ)
        device = Device(
            0, "GPU-00000000-0000-0000-0000-000000000001", "NVIDIA H200", "00000000:00:05.0", "Hopper", "9.0",
            total, reserved, 700.0, 1980, True, NOT_READ,
        )  # fmt: skip
        return Inventory(NodeInfo("h200", "", "", cpus, memory if isinstance(memory, int) else NOT_READ), (device,))

    def _device(self, row: Row) -> DeviceSample:
        if row.get("mem"):
            self._memory = int(row["mem"][2])
        if "procs" in row:
            self._processes = tuple(
                DeviceProcess(int(pid), NOT_SUPPORTED if used is None else int(used), "C")
                for pid, used in row["procs"] or ()
            )
        if row.get("temp") is not None:
            self._temperature = int(row["temp"])
        gpm = row.get("gpm") or {}
        readings: dict[str, Num] = {name: _number(gpm.get(raw)) for raw, name in _GPM.items()}
        for raw, name in _GPM_MIB.items():
            rate = _number(gpm.get(raw))
            readings[name] = rate if isinstance(rate, Absent) else rate * 2**20
        window = 0
        if gpm and self._gpm_at is not None:
            window = round((float(row["t"]) - self._gpm_at) * 1e9)
        if gpm:
            self._gpm_at = float(row["t"])
        util, clocks = row.get("util") or (None, None), row.get("clk") or (None, None)
        return DeviceSample(
            0, self._ns(row), _whole(util[0]), _whole(util[1]), self._memory,
            row["pw"] / 1000.0 if isinstance(row.get("pw"), (int, float)) else NOT_READ,
            self._temperature, _whole(clocks[0]), _whole(clocks[1]), _whole(row.get("thr")), window,
            **readings,  # type: ignore[arg-type]
            nvlink_rx_bytes_per_s=NOT_SUPPORTED, nvlink_tx_bytes_per_s=NOT_SUPPORTED,
            processes=self._processes, processes_absent=None,
        )  # fmt: skip

    def _health(self, row: Row) -> Iterator[DeviceHealth]:
        """What each listed process used since the reading before. The driver names only those that were active since
        the stamp it was asked from; its first answer is of an unknown past and teaches the stamp."""
        if not isinstance(row.get("putil"), list):
            return
        newest: dict[int, tuple[int, int, int]] = {}
        for pid, stamp_us, sm, memory in row["putil"]:
            if stamp_us > max(self._util_seen_us, newest.get(pid, (0,))[0]):
                newest[int(pid)] = (int(stamp_us), int(sm), int(memory))
        first = not self._util_seen_us
        self._util_seen_us = max((stamp for stamp, _, _ in newest.values()), default=self._util_seen_us)
        if first and newest:
            return
        utils = tuple(ProcessUtil(p.pid, *newest.get(p.pid, (0, 0, 0))[1:], 0, 0) for p in self._processes)
        yield DeviceHealth(0, self._ns(row), process_utils=utils, process_utils_absent=None)

    def _tick(self, group: list[Row]) -> Sequence[ProcessTick]:
        samples, infos = [], []
        for row in group:
            stat = _stat(row.get("stat"))
            if stat is None:
                self.left_out += 1
                continue
            samples.append(self._process(row, stat))
            key = (stat.pid, stat.start_ticks)
            if key not in self._told:
                self._told.add(key)
                infos.append(self._info(row, stat))
        cgroups = (self._cgroup,) if self._cgroup is not None else ()
        return (ProcessTick(self._ns(group[0]), tuple(samples), cgroups, tuple(infos)),) if samples else ()

    def _info(self, row: Row, stat: parse.PidStat) -> ProcessInfo:
        on_gpu = stat.pid == self.main_pid or stat.pid in self._gpu_pids
        worker = stat.comm.startswith("pt_data_worker")
        role = Role.MAIN if on_gpu else Role.LOADER_WORKER if worker else Role.CHILD
        command = row.get("cmd") or stat.comm
        text = " ".join(command) if isinstance(command, list) else str(command).replace("\0", " ").strip()
        status = _tried(lambda: parse.parse_status(row["status"].encode()))
        uid = status.uid if isinstance(status, parse.PidStatus) else 0
        return ProcessInfo(
            stat.pid, stat.start_ticks, stat.ppid, stat.pid if on_gpu else self.main_pid, role, stat.comm, text,
            str(uid), uid, device_indices=(0,) if on_gpu else (), python=stat.comm.startswith(("python", "pt_")),
        )  # fmt: skip

    def _process(self, row: Row, stat: parse.PidStat) -> ProcessSample:
        seconds = float(row["t"])
        ticks = stat.utime_ticks + stat.stime_ticks
        before = self._cpu_at.get((stat.pid, stat.start_ticks))
        self._cpu_at[stat.pid, stat.start_ticks] = (seconds, ticks)
        cpu_pct: Num = NOT_READ
        if before is not None and seconds > before[0]:
            cpu_pct = 100.0 * (ticks - before[1]) * TICK_NS / 1e9 / (seconds - before[0])
        texts = row.get("threads") or {}
        threads = {int(tid): found for tid, text in texts.items() if (found := _stat(text)) is not None}
        leader = threads.get(stat.pid, stat)
        io = _tried(lambda: parse.parse_io(row["io"].encode()))
        run = _tried(lambda: parse.parse_schedstat(row["schedstat"].encode()))
        wchan = row.get("wchan") or "0"
        known = isinstance(io, parse.PidIo)
        return ProcessSample(
            stat.pid, stat.start_ticks, self._ns(row), stat.state, cpu_pct, stat.utime_ticks * TICK_NS,
            stat.stime_ticks * TICK_NS, (leader.utime_ticks + leader.stime_ticks) * TICK_NS, leader.state,
            stat.num_threads,
            sum(t.state == "R" for t in threads.values()) if threads else int(stat.state == "R"), stat.rss_pages * 4096,
            run[1] if isinstance(run, tuple) else NOT_READ,
            io.read_bytes if known else NOT_READ, io.write_bytes if known else NOT_READ,
            io.rchar if known else NOT_READ, io.syscr if known else NOT_READ, stat.majflt,
            wchan if wchan != "0" else Absent(Reason.NOT_FOUND),
        )  # fmt: skip

    def _host(self, row: Row) -> HostSample:
        cpus = parse.parse_cpu_lines(row["stat"].encode())
        busy, iowait = _cpu_shares(self._cpu, cpus)
        self._cpu = cpus
        memory = _tried(lambda: parse.parse_meminfo(row["meminfo"].encode()))
        sizes = memory if isinstance(memory, dict) else {}
        pressure = {name: self._psi(name, row) for name in ("cpu", "io", "memory")}
        self._read_cgroup(row)
        swap: Int = NOT_READ
        if "SwapTotal" in sizes and "SwapFree" in sizes:
            swap = sizes["SwapTotal"] - sizes["SwapFree"]
        return HostSample(
            self._ns(row), busy, (CoreGroup("node0", len(cpus), busy, iowait),),
            pressure["cpu"], pressure["io"], pressure["memory"],
            sizes.get("MemTotal", NOT_READ), sizes.get("MemAvailable", NOT_READ), swap,
            float(row["load"].split()[0]) if row.get("load") else NOT_READ, cpus_online=len(cpus),
        )  # fmt: skip

    def _psi(self, name: str, row: Row) -> Pressure:
        totals = _tried(lambda: parse.parse_pressure(row["psi"][name].encode()))
        if not isinstance(totals, parse.PressureTotals):
            return Pressure(NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED, NOT_SUPPORTED)
        before = self._pressure.get(name)
        self._pressure[name] = (float(row["t"]), totals)
        some: Num = NOT_READ
        if before is not None and float(row["t"]) > before[0]:
            some = (totals.some_us - before[1].some_us) / 1e4 / (float(row["t"]) - before[0])
        return Pressure(some, NOT_READ, totals.some_us, NOT_READ if totals.full_us is None else totals.full_us)

    def _read_cgroup(self, row: Row) -> None:
        quota = _tried(lambda: parse.parse_cpu_max(row["cgmax"].encode()))
        throttling = _tried(lambda: parse.parse_cpu_stat(row["cgcpu"].encode()))
        if isinstance(quota, float) and isinstance(throttling, parse.Throttling):
            self._cgroup = CgroupSample(self.main_pid, self._ns(row), quota, *throttling)

    def _stack(self, row: Row) -> StackSample:
        threads = tuple(
            ThreadStack(
                int(t.get("os") or 0), str(t.get("n") or ""), bool(t.get("a")), bool(t.get("g")),
                tuple(Frame(str(f[0]), str(f[1] or ""), int(f[2] or 0)) for f in t.get("f") or ()),
            )
            for t in row.get("th") or ()
        )  # fmt: skip
        return StackSample(int(row["pid"]), self.main_pid, self._ns(row), threads)

    def _native(self, row: Row) -> Iterator[StackSample]:
        """Collapsed stacks carry counts, not times: they are spread evenly over the burst that ends here."""
        stacks = parse_collapsed(str(row.get("raw") or "").encode())
        for i, thread in enumerate(stacks):
            before_ns = int(NATIVE_BURST_S * 1e9 * (len(stacks) - i) / len(stacks))
            yield StackSample(self.main_pid, self.main_pid, self._ns(row) - before_ns, (thread,), native=True)


def _cpu_shares(before: dict[int, parse.CpuTimes], now: dict[int, parse.CpuTimes]) -> tuple[Num, Num]:
    """Busy and iowait of all CPUs since the previous reading, percent."""
    busy = total = iowait = 0
    for cpu, times in now.items():
        if cpu in before:
            delta = [new - old for new, old in zip(times, before[cpu], strict=True)]
            total += sum(delta)
            busy += delta[0]
            iowait += delta[2]
    return (100.0 * busy / total, 100.0 * iowait / total) if total > 0 else (NOT_READ, NOT_READ)


def _tried(read: Callable[[], Any]) -> Any:
    """What a parser makes of a text that may be missing or cut."""
    try:
        return read()
    except (KeyError, ValueError, AttributeError, TypeError, IndexError):
        return None


def _stat(text: Any) -> parse.PidStat | None:
    found = _tried(lambda: parse.parse_stat(text.encode()))
    return found if isinstance(found, parse.PidStat) else None


def _number(value: object) -> Num:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else NOT_READ


def _whole(value: object) -> Int:
    return int(value) if isinstance(value, (int, float)) else NOT_READ


def convert(source: Path, target: Path) -> tuple[int, int]:
    """Convert one file: the number of observations, and of lines that say too little. Raises GpuwatchError."""
    lines = rows(source)
    converter = Converter(lines)
    with Writer(target, round(converter.start_s * 1e9), note=f"converted from {source.name}") as writer:
        for observation in converter.observations():
            writer.write(observation)
    return writer.count, converter.left_out


def main(argv: list[str]) -> int:
    """Command line; errors are one line, exit codes those of gpuwatch."""
    try:
        if len(argv) != 2:
            raise UsageError("usage: convert_raw.py IN.jsonl.gz OUT.gwrec")
        count, left_out = convert(Path(argv[0]), Path(argv[1]))
    except GpuwatchError as exc:
        print(f"convert_raw: {exc}", file=sys.stderr)
        return exc.exit_code
    print(f"{argv[1]}: {count} observations")
    if left_out:
        print(f"convert_raw: {argv[0]}: {left_out} lines left out: they lack a value of their kind", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
