"""Text of the kernel's files to fields.

Owns: the formats of /proc, PSI and cgroup files (proc(5), Documentation/accounting/psi.rst, admin-guide/cgroup-v2.rst).
Refuses: opening anything. Every parser raises ValueError that names the file when the text is not what the kernel
documents; the readers turn that into ``Absent``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class PidStat(NamedTuple):
    """What we use of /proc/PID/stat and /proc/PID/task/TID/stat. Times in clock ticks, memory in pages."""

    pid: int
    comm: str
    state: str
    ppid: int
    majflt: int
    utime_ticks: int
    stime_ticks: int
    num_threads: int
    start_ticks: int
    rss_pages: int


class PidStatus(NamedTuple):
    """What we use of /proc/PID/status."""

    uid: int
    """Real user id."""
    nspid: tuple[int, ...]
    """The pid in each nested PID namespace, outermost first; empty before Linux 4.1."""
    cpus_allowed: str
    """Such as "0-3,8"; "" before Linux 2.6.26 and where /proc is not the kernel's own (gVisor)."""


class PidIo(NamedTuple):
    """What we use of /proc/PID/io."""

    rchar: int
    syscr: int
    read_bytes: int
    write_bytes: int


class CpuTimes(NamedTuple):
    """One CPU line of /proc/stat, in ticks. ``busy`` is ours: user, nice, system, irq, softirq."""

    busy: int
    idle: int
    iowait: int
    steal: int


class PressureTotals(NamedTuple):
    """Cumulative microseconds of a PSI file; ``full`` is None where the kernel has no such line."""

    some_us: int
    full_us: int | None


class CgroupPaths(NamedTuple):
    """/proc/PID/cgroup: the path in the unified hierarchy, if any, and the path of each v1 controller."""

    v2: str | None
    v1: dict[str, str]


class CgroupMount(NamedTuple):
    """A cgroup hierarchy as mounted here."""

    root: str
    """The directory inside the hierarchy that is visible at ``point``: not "/" inside many containers."""
    point: str
    controllers: frozenset[str]
    """Of a v1 hierarchy; empty for v2."""
    v2: bool


class Throttling(NamedTuple):
    """CPU bandwidth counters of a cgroup."""

    nr_periods: int
    nr_throttled: int
    throttled_us: int


def printable(raw: bytes) -> str:
    """Text a terminal can be given: not UTF-8 becomes U+FFFD, control characters become "?"."""
    text = raw.decode("utf-8", "replace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


def parse_stat(data: bytes) -> PidStat:
    """/proc/PID/stat. A comm may hold spaces, brackets and newlines: only the last ")" ends it."""
    left, right = data.find(b"("), data.rfind(b")")
    fields = data[right + 1 :].split()
    if left < 1 or right < left or len(fields) < 22:
        raise ValueError(f"stat: {len(fields)} fields after the command, at least 22 expected")
    return PidStat(
        pid=int(data[:left]),
        comm=printable(data[left + 1 : right]),
        state=fields[0].decode("ascii", "replace"),
        ppid=int(fields[1]),
        majflt=int(fields[9]),
        utime_ticks=int(fields[11]),
        stime_ticks=int(fields[12]),
        num_threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_pages=int(fields[21]),
    )


def parse_state(data: bytes) -> str:
    """Only the state letter of a stat file: cheap, for every thread of a process."""
    right = data.rfind(b")")
    state = data[right + 2 : right + 3]
    if right < 0 or not state.isalpha():
        raise ValueError("stat: no state after the command")
    return state.decode("ascii")


def _keyed(data: bytes, file: str) -> dict[bytes, bytes]:
    """Lines "key: value" to a dict."""
    pairs = dict(line.split(b":", 1) for line in data.splitlines() if b":" in line)
    if not pairs:
        raise ValueError(f"{file}: no line of the form 'key: value'")
    return pairs


def _need(pairs: dict[bytes, bytes], key: bytes, file: str) -> int:
    """First number of a key's value."""
    try:
        return int(pairs[key].split()[0])
    except (KeyError, IndexError):
        raise ValueError(f"{file}: no value for {key.decode()}") from None


def parse_status(data: bytes) -> PidStatus:
    """/proc/PID/status. Only the user must be there: gVisor, and kernels of other makes, leave lines out."""
    pairs = _keyed(data, "status")
    return PidStatus(
        uid=_need(pairs, b"Uid", "status"),
        nspid=tuple(int(pid) for pid in pairs.get(b"NSpid", b"").split()),
        cpus_allowed=printable(pairs.get(b"Cpus_allowed_list", b"").strip()),
    )


def parse_io(data: bytes) -> PidIo:
    """/proc/PID/io."""
    pairs = _keyed(data, "io")
    return PidIo(*(_need(pairs, key, "io") for key in (b"rchar", b"syscr", b"read_bytes", b"write_bytes")))


def parse_schedstat(data: bytes) -> tuple[int, int]:
    """/proc/PID/schedstat of the main thread: (ns on a CPU, ns runnable but waiting for one)."""
    fields = data.split()
    if len(fields) < 2:
        raise ValueError(f"schedstat: {len(fields)} fields, at least 2 expected")
    return int(fields[0]), int(fields[1])


def parse_cmdline(data: bytes) -> tuple[str, ...]:
    """/proc/PID/cmdline to arguments; empty for kernel threads and zombies."""
    stripped = data.rstrip(b"\0")
    return tuple(printable(argument) for argument in stripped.split(b"\0")) if stripped else ()


def parse_environ(data: bytes, names: Collection[str]) -> dict[str, str]:
    """/proc/PID/environ: the variables of these names, and nothing of the others, which may be secrets."""
    pairs = (entry.partition(b"=") for entry in data.split(b"\0"))
    return {
        name: printable(value)
        for raw, sign, value in pairs
        if sign and (name := raw.decode("utf-8", "replace")) in names
    }


def parse_cpu_lines(data: bytes) -> dict[int, CpuTimes]:
    """/proc/stat: CPU number to ticks. Offline CPUs have no line; guest time is already in user time."""
    cpus: dict[int, CpuTimes] = {}
    for line in data.splitlines():
        if not line.startswith(b"cpu"):
            break
        name, *fields = line.split()
        if name == b"cpu":
            continue
        if len(fields) < 4:
            raise ValueError(f"/proc/stat: {name.decode()} has {len(fields)} fields, at least 4 expected")
        user, nice, system, idle, iowait, irq, softirq, steal = ([*map(int, fields[:8])] + [0] * 4)[:8]
        cpus[int(name[3:])] = CpuTimes(user + nice + system + irq + softirq, idle, iowait, steal)
    if not cpus:
        raise ValueError("/proc/stat: no CPU line")
    return cpus


def parse_pressure(data: bytes) -> PressureTotals:
    """A PSI file, /proc/pressure/NAME."""
    totals: dict[bytes, int] = {}
    for line in data.splitlines():
        kind, *fields = line.split()
        for field in fields:
            key, _, value = field.partition(b"=")
            if key == b"total":
                totals[kind] = int(value)
    if b"some" not in totals:
        raise ValueError("pressure: no 'some … total='")
    return PressureTotals(totals[b"some"], totals.get(b"full"))


def parse_meminfo(data: bytes) -> dict[str, int]:
    """/proc/meminfo: name to bytes (the file's kB are 1024)."""
    sizes: dict[str, int] = {}
    for key, value in _keyed(data, "meminfo").items():
        fields = value.split()
        if fields and fields[-1] == b"kB":
            sizes[key.decode("ascii", "replace")] = int(fields[0]) * 1024
    if "MemTotal" not in sizes:
        raise ValueError("meminfo: no MemTotal")
    return sizes


def parse_cgroup(data: bytes) -> CgroupPaths:
    """/proc/PID/cgroup, for v1, v2 and both mixed. A removed cgroup's " (deleted)" mark is dropped."""
    v2: str | None = None
    v1: dict[str, str] = {}
    for line in data.splitlines():
        fields = line.split(b":", 2)
        if len(fields) != 3:
            raise ValueError(f"cgroup: {printable(line)!r} is not 'id:controllers:path'")
        path = printable(fields[2]).removesuffix(" (deleted)")
        if fields[0] == b"0" and not fields[1]:
            v2 = path
        else:
            v1.update((name, path) for name in fields[1].decode("ascii", "replace").split(","))
    return CgroupPaths(v2, v1)


def parse_cpu_max(data: bytes) -> float | None:
    """Cores of cpu.max (v2); None for "max"."""
    fields = data.split()
    if len(fields) != 2:
        raise ValueError(f"cpu.max: {len(fields)} fields, 2 expected")
    return None if fields[0] == b"max" else _cores(int(fields[0]), int(fields[1]), "cpu.max")


def parse_cfs_quota(quota: bytes, period: bytes) -> float | None:
    """Cores of cpu.cfs_quota_us and cpu.cfs_period_us (v1); None for a quota of -1."""
    quota_us = int(quota)
    return None if quota_us < 0 else _cores(quota_us, int(period), "cpu.cfs_period_us")


def _cores(quota_us: int, period_us: int, file: str) -> float:
    if period_us <= 0:
        raise ValueError(f"{file}: a period of {period_us} µs")
    return quota_us / period_us


def parse_cpu_stat(data: bytes) -> Throttling:
    """cpu.stat: v2 has ``throttled_usec``, v1 ``throttled_time`` in nanoseconds."""
    values = dict(line.split(b" ", 1) for line in data.splitlines() if b" " in line)
    if b"nr_throttled" not in values or b"nr_periods" not in values:
        raise ValueError("cpu.stat: no nr_throttled: the cpu controller is not enabled here")
    if b"throttled_usec" in values:
        throttled_us = int(values[b"throttled_usec"])
    else:
        throttled_us = int(values.get(b"throttled_time", b"0")) // 1000
    return Throttling(int(values[b"nr_periods"]), int(values[b"nr_throttled"]), throttled_us)


def parse_cgroup_mounts(data: bytes) -> tuple[CgroupMount, ...]:
    """The cgroup hierarchies in /proc/PID/mountinfo."""
    mounts: list[CgroupMount] = []
    for line in data.splitlines():
        before, separator, after = line.partition(b" - ")
        fields, kind = before.split(), after.split()
        if not separator or len(fields) < 5 or len(kind) < 3 or kind[0] not in (b"cgroup", b"cgroup2"):
            continue
        v2 = kind[0] == b"cgroup2"
        controllers = frozenset[str]() if v2 else frozenset(kind[2].decode("ascii", "replace").split(","))
        mounts.append(CgroupMount(_unescaped(fields[3]), _unescaped(fields[4]), controllers, v2))
    return tuple(mounts)


def parse_hidepid(data: bytes) -> tuple[str, ...]:
    """The options of mountinfo by which the mount of /proc hides other users' processes, such as "hidepid=2" and
    "gid=20". The kernel writes words since 5.8; "off" and "0" hide nothing."""
    found: tuple[str, ...] = ()
    for line in data.splitlines():
        before, _, after = line.partition(b" - ")
        fields, rest = before.split(), after.split()
        if len(fields) >= 5 and fields[4] == b"/proc" and len(rest) >= 3 and rest[0] == b"proc":
            options = printable(rest[2]).split(",")
            hides = [o for o in options if o.startswith("hidepid=") and o not in ("hidepid=off", "hidepid=0")]
            # The last mount at one point is the one that is seen.
            found = (*hides, *(o for o in options if hides and o.startswith("gid=")))
    return found


class Mount(NamedTuple):
    """One line of mountinfo."""

    device: str
    """Major and minor number, such as "259:2"."""
    point: str
    kind: str
    source: str


def parse_mounts(data: bytes) -> tuple[Mount, ...]:
    """All mounts in /proc/PID/mountinfo, in the order in which they were made."""
    mounts: list[Mount] = []
    for line in data.splitlines():
        before, separator, after = line.partition(b" - ")
        fields, rest = before.split(), after.split()
        if separator and len(fields) >= 5 and len(rest) >= 2:
            mounts.append(Mount(printable(fields[2]), _unescaped(fields[4]), printable(rest[0]), _unescaped(rest[1])))
    return tuple(mounts)


def _unescaped(field: bytes) -> str:
    """mountinfo writes space, tab, newline and backslash as three octal digits."""
    for code in (b"\\040", b"\\011", b"\\012", b"\\134"):
        field = field.replace(code, bytes([int(code[1:], 8)]))
    return field.decode("utf-8", "surrogateescape")


def parse_cpu_list(data: bytes) -> frozenset[int]:
    """A list such as "0-15,32-47"; empty for a memory-only NUMA node."""
    cpus: set[int] = set()
    for part in data.strip().split(b","):
        if part:
            first, _, last = part.partition(b"-")
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
