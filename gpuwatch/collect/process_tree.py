"""Which processes belong to which GPU process.

Owns: parent links, the one-second cache, launchers above a job. Refuses: counters and roles.
"""

from __future__ import annotations

import os
from pathlib import Path

from gpuwatch.collect import roles
from gpuwatch.collect.proc_files import read_all, reading
from gpuwatch.collect.proc_parse import parse_cmdline, parse_stat
from gpuwatch.model import Absent

KEEP_NS = 1_000_000_000
"""A tree is at most this old; a new child of a GPU process's main thread is seen at once."""
LAUNCHER_LEVELS = 6


class ProcessTree:
    """Members of the jobs, with a cache."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = str(root)
        self._roots: tuple[int, ...] = ()
        self._members: dict[int, int] = {}
        self._launchers: dict[int, int] = {}
        self._signature: tuple[bytes, ...] = ()
        self._until_ns = 0
        self._pids_in_proc = 0

    def changed(self) -> None:
        """Look again at the next call."""
        self._until_ns = 0

    def is_launcher_of(self, pid: int, root: int) -> bool:
        """``pid`` stands above ``root`` and looks like what started it."""
        return self._launchers.get(pid) == root

    def members(self, roots: tuple[int, ...], mono_ns: int) -> dict[int, int]:
        """pid → the GPU process that it belongs to: roots themselves, descendants, then launchers above them."""
        signature = tuple(self._children_file(pid, pid) for pid in roots)
        if mono_ns < self._until_ns and roots == self._roots and signature == self._signature:
            return dict(self._members)
        new_roots = roots != self._roots
        self._roots, self._signature, self._until_ns = roots, signature, mono_ns + KEEP_NS
        links = self._links(roots)
        members = {root: root for root in roots}
        for root in roots:
            self._descend(root, root, links, members)
        if new_roots:
            # A job's launcher does not change; one that ends is dropped by whoever reads it.
            self._launchers = self._find_launchers(roots, members)
        self._members = self._launchers | members
        return dict(self._members)

    def _descend(self, pid: int, root: int, links: dict[int, list[int]], members: dict[int, int]) -> None:
        """Take all below ``pid`` that is not a GPU process of its own or below one."""
        waiting = [pid]
        while waiting:
            for child in links.get(waiting.pop(), ()):
                if child not in members:
                    members[child] = root
                    waiting.append(child)

    def _children_file(self, pid: int, tid: int) -> bytes:
        try:
            return read_all(f"{self._root}/{pid}/task/{tid}/children")
        except OSError:
            return b""

    def _links(self, roots: tuple[int, ...]) -> dict[int, list[int]]:
        """Parent → children. The children files cost one read per thread of the jobs, /proc one per process."""
        if self._pids_in_proc:
            links = self._links_from_children(roots, self._pids_in_proc)
            if links is not None:
                return links
        return self._links_from_scan()

    def _links_from_children(self, roots: tuple[int, ...], most_reads: int) -> dict[int, list[int]] | None:
        """None when the kernel has no children files or a scan of /proc would be fewer reads."""
        links: dict[int, list[int]] = {}
        waiting, reads = list(roots), 0
        while waiting:
            pid = waiting.pop()
            if pid in links:
                continue
            links[pid] = []
            try:
                tids = os.listdir(f"{self._root}/{pid}/task")  # noqa: PTH208 - hot path
            except OSError:
                continue
            reads += len(tids)
            if reads > most_reads:
                return None
            for tid in tids:
                try:
                    links[pid] += map(int, read_all(f"{self._root}/{pid}/task/{tid}/children").split())
                except FileNotFoundError:
                    if os.access(f"{self._root}/{pid}/task/{tid}/stat", os.F_OK):
                        return None
                except (OSError, ValueError):
                    continue
            waiting += links[pid]
        self._keep_missed(links)
        return links

    def _keep_missed(self, links: dict[int, list[int]]) -> None:
        """A children file may skip entries while others exit (proc(5)): known members that still hang here stay."""
        seen = {child for children in links.values() for child in children} | links.keys()
        for pid in self._members.keys() - seen:
            stat = reading(f"{self._root}/{pid}/stat", parse_stat)
            if not isinstance(stat, Absent) and stat.ppid in seen:
                links.setdefault(stat.ppid, []).append(pid)

    def _links_from_scan(self) -> dict[int, list[int]]:
        """One pass over /proc."""
        links: dict[int, list[int]] = {}
        pids = [name for name in os.listdir(self._root) if name.isdigit()]  # noqa: PTH208 - hot path
        self._pids_in_proc = len(pids)
        for pid in pids:
            stat = reading(f"{self._root}/{pid}/stat", parse_stat)
            if not isinstance(stat, Absent):
                links.setdefault(stat.ppid, []).append(stat.pid)
        return links

    def _find_launchers(self, roots: tuple[int, ...], members: dict[int, int]) -> dict[int, int]:
        """Nearest launcher above each GPU process; one that started several belongs to the first."""
        launchers: dict[int, int] = {}
        for root in roots:
            pid = root
            for _ in range(LAUNCHER_LEVELS):
                stat = reading(f"{self._root}/{pid}/stat", parse_stat)
                if isinstance(stat, Absent) or stat.ppid <= 1 or stat.ppid in members:
                    break
                pid = stat.ppid
                argv = reading(f"{self._root}/{pid}/cmdline", parse_cmdline)
                parent = reading(f"{self._root}/{pid}/stat", parse_stat)
                if isinstance(argv, Absent) or isinstance(parent, Absent):
                    break
                if roles.is_launcher(roles.Names(parent.comm, "", argv)):
                    launchers.setdefault(pid, root)
                    break
        return launchers
