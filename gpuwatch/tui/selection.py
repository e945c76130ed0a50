"""What the person looks at: the view's options, the jobs of a node, and how the arrows move among them.

Owns: ViewOptions, grouping processes into GPU jobs, the order of the process list, moving the selection.
Refuses: drawing, keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

from msgspec import Struct
from msgspec.structs import replace

from gpuwatch.client.rates import IoRate
from gpuwatch.client.state import NodeState
from gpuwatch.model import Device, Diagnosis, ProcessInfo, Role, value_or
from gpuwatch.tui.text import ASCII, UNICODE, Glyphs
from gpuwatch.wire import StartDiagnosis

SORTS = {"gpu": "GPU", "cpu": "CPU", "gpumem": "GPU memory", "rss": "RSS", "read": "read rate"}
"""By GPU each job is a tree; by anything else the processes are one flat list, largest first."""
TEXTS = ("diagnosis", "help", "events")
"""Views that scroll and have no selection."""
_ROLE_ORDER = {Role.MAIN: 0, Role.PARENT: 1, Role.CHILD: 2, Role.LOADER_WORKER: 3}


class ViewOptions(Struct, frozen=True):
    """Everything about a screen that is the person's choice and not the node's state."""

    view: str = "overview"
    device: int = -1
    """Index of the selected GPU; one that is not there means the first."""
    pid: int = 0
    """Selected process: 0 means the first job of the selected GPU."""
    scroll: int = 0
    paused: bool = False
    ascii_only: bool = False
    zone: tzinfo | None = None
    """Time zone of clock times; None is the machine's own."""
    hide_notice: bool = False
    """The answer to the last request has been there long enough."""
    note: str = ""
    """A standing remark for the header, such as why a recording is being played."""
    host: int = 0
    """Place of the host that is looked at, in the order in which they were named."""
    host_count: int = 1
    window_s: int = 300
    """Length of the charts of the GPU view."""
    sort: str = "gpu"
    """Of the process list, one of SORTS."""
    find: str = ""
    """Only processes, events and hosts with these words."""
    typing: bool = False
    """The words are being typed."""
    follow: bool = False
    """Stay with the selected process, also when the order changes or it ends."""
    kind: str = ""
    """Only events of this kind; empty is all."""
    row: int = 0
    """Selected probe."""
    question: str = ""
    """Waits for y or n."""
    said: str = ""
    """What this screen itself has to say about the last key; empty once the daemon has the word."""
    readonly: bool = False
    """No signal, no probe, no diagnosis: only look."""

    @property
    def glyphs(self) -> Glyphs:
        """The characters to draw with."""
        return ASCII if self.ascii_only else UNICODE


class Job(Struct, frozen=True):
    """A process that holds GPUs, with the processes that belong to it."""

    pid: int
    """0 when the GPU has no process."""
    device_indices: tuple[int, ...]
    main: ProcessInfo | None = None
    """None when NVML names a pid that /proc does not show, as in a container."""
    members: tuple[ProcessInfo, ...] = ()
    """Everything but the main process: children first, loader workers last, then by pid."""


def jobs(state: NodeState) -> tuple[Job, ...]:
    """All GPU jobs, by their first GPU, then by the memory they hold on it, largest first."""
    held: dict[int, dict[int, float]] = {}
    for index, sample in state.devices.items():
        for process in sample.processes:
            held.setdefault(process.pid, {})[index] = value_or(process.mem_used_bytes, 0)
    members: dict[int, list[ProcessInfo]] = {}
    for info in state.infos.values():
        members.setdefault(info.root_pid, []).append(info)
    out = []
    for pid in held.keys() | {info.pid for info in state.infos.values() if info.role is Role.MAIN}:
        main = state.infos.get(pid)
        devices = set(held.get(pid, ())) | set(main.device_indices if main is not None else ())
        others = sorted((m for m in members.get(pid, ()) if m.pid != pid), key=lambda m: (_ROLE_ORDER[m.role], m.pid))
        out.append(Job(pid, tuple(sorted(devices)), main, tuple(others)))
    return tuple(
        sorted(out, key=lambda j: (j.device_indices[:1] or (1 << 30,), -sum(held.get(j.pid, {}).values()), j.pid))
    )


def rank_text(job: Job) -> str:
    """ "rank 0 of 2" of a distributed job, or ""."""
    place = job.main.place if job.main is not None else None
    return f"rank {place.rank} of {place.world_size}" if place is not None else ""


def other_ranks(state: NodeState, job: Job) -> tuple[Job, ...]:
    """The other ranks of a distributed job on this node, in their order."""
    if job.main is None or job.main.place is None:
        return ()
    found = [
        (other.main.place.rank, other)
        for other in jobs(state)
        if other.main is not None and other.main.place is not None and job.main.same_job(other.main)
    ]
    return tuple(other for _, other in sorted(found, key=lambda one: one[0]))


def in_order(devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices as lists show them: each GPU, then its MIG instances; an instance whose GPU is not there (a container
    that was given only the instance) has its own place."""
    return tuple(device for whole in wholes(devices) for device in (whole, *parts_of(whole, devices)))


def wholes(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Without the MIG instances whose GPU is there too: what it has is not counted twice."""
    uuids = {device.uuid for device in devices} - {""}
    return tuple(device for device in devices if device.parent_uuid not in uuids)


def parts_of(gpu: Device, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The MIG instances of a GPU."""
    return tuple(device for device in devices if gpu.uuid and device.parent_uuid == gpu.uuid)


def first_shown(at: int, count: int, lines: int) -> int:
    """The first of ``count`` entries on ``lines`` lines: the one ``at`` that is selected stands in the middle, except
    near the ends."""
    return min(max(0, at - lines // 2), max(0, count - lines))


def selected_device(state: NodeState, options: ViewOptions) -> int | None:
    """Index of the GPU that is looked at, or None when there is none."""
    if state.inventory is None or not state.inventory.devices:
        return None
    indices = [device.index for device in in_order(state.inventory.devices)]
    return options.device if options.device in indices else indices[0]


def selected_job(state: NodeState, options: ViewOptions) -> Job | None:
    """The job that ``d`` would diagnose; with pid 0 when the selected GPU has no process."""
    everyone = jobs(state)
    for job in everyone:
        if options.pid and (job.pid == options.pid or any(m.pid == options.pid for m in job.members)):
            return job
    device = selected_device(state, options)
    here = [job for job in everyone if device in job.device_indices]
    if here:
        return here[0]
    return Job(0, (device,)) if device is not None else None


def diagnosis_of(state: NodeState, job: Job) -> Diagnosis | None:
    """The newest diagnosis of a job, or of the GPU when it has no process."""
    if job.pid:
        return state.diagnosis_of(job.pid)
    return next((d for d in state.diagnoses if d.pid == 0 and set(d.device_indices) & set(job.device_indices)), None)


def diagnosing(state: NodeState, job: Job) -> bool:
    """The diagnosis under way is this job's."""
    progress = state.progress
    if progress is None:
        return False
    return progress.pid == job.pid if job.pid else bool(set(progress.device_indices) & set(job.device_indices))


def start_request(state: NodeState, options: ViewOptions, request_id: int) -> StartDiagnosis | None:
    """The request that ``d`` sends, or None when there is nothing to diagnose."""
    job = selected_job(state, options)
    if job is None:
        return None
    return StartDiagnosis(request_id, pid=job.pid, device_index=job.device_indices[0] if job.device_indices else -1)


def process_order(state: NodeState, options: ViewOptions | None = None) -> tuple[int, ...]:
    """Pids in the order in which the process list shows them."""
    options = options or ViewOptions()
    pids = [
        pid for job in jobs(state) for pid in (job.pid, *(m.pid for m in job.members)) if _wanted(state, pid, options)
    ]
    if options.sort != "gpu":
        pids.sort(key=lambda pid: -_weight(state, pid, options.sort))
    return tuple(pids)


def _wanted(state: NodeState, pid: int, options: ViewOptions) -> bool:
    words = options.find.lower()
    info = state.infos.get(pid)
    if not words or info is None:
        return not words or words in str(pid)
    return any(words in text.lower() for text in (str(pid), info.user, info.command, info.comm, str(info.container)))


def _weight(state: NodeState, pid: int, sort: str) -> float:
    """What is sorted by; a reading that is absent comes last."""
    sample = state.processes.get(pid)
    match sort:
        case "cpu":
            return value_or(sample.cpu_pct, -1) if sample is not None else -1
        case "rss":
            return value_or(sample.rss_bytes, -1) if sample is not None else -1
        case "read":
            return value_or(state.io_rates.get(pid, IoRate()).read_bytes_per_s, -1)
    held = [value_or(p.mem_used_bytes, -1) for s in state.devices.values() for p in s.processes if p.pid == pid]
    return sum(held) if held else -1


def move(state: NodeState, options: ViewOptions, step: int) -> ViewOptions:
    """The options after an arrow key: the next GPU, process or line, whichever the view lists."""
    if options.view in TEXTS:
        return replace(options, scroll=max(0, options.scroll + step))
    if options.view == "processes":
        return _move_process(state, options, step)
    return _next_gpu(state, options, step)


def _next_gpu(state: NodeState, options: ViewOptions, step: int) -> ViewOptions:
    if state.inventory is None or not state.inventory.devices:
        return options
    indices = [device.index for device in in_order(state.inventory.devices)]
    here = indices.index(selected_device(state, options) or indices[0])
    target = indices[min(max(here + step, 0), len(indices) - 1)]
    return replace(options, device=target, pid=0, scroll=0)


def next_job(state: NodeState, options: ViewOptions, step: int) -> ViewOptions:
    """The options after left or right: the next job, wherever one is."""
    everyone = jobs(state)
    if not everyone or options.view in ("gpu", "probes"):
        return _next_gpu(state, options, step)
    current = selected_job(state, options)
    pids = [job.pid for job in everyone]
    here = pids.index(current.pid) if current is not None and current.pid in pids else -step
    job = everyone[(here + step) % len(everyone)]
    return replace(options, pid=job.pid, device=job.device_indices[0] if job.device_indices else -1, scroll=0)


def _move_process(state: NodeState, options: ViewOptions, step: int) -> ViewOptions:
    order = process_order(state, options)
    if not order:
        return options
    current = selected_job(state, options)
    pid = options.pid if options.pid in order else (current.pid if current is not None else 0)
    here = order.index(pid) if pid in order else 0
    target = order[min(max(here + step, 0), len(order) - 1)]
    job = next(j for j in jobs(state) if target == j.pid or any(m.pid == target for m in j.members))
    device = job.device_indices[0] if job.device_indices else options.device
    return replace(options, pid=target, device=device)
