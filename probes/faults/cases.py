"""What is wrong with a job, how badly, what repairs it, and what only looks as if it would.

Owns: the table of cases, the named repairs, and which repair a diagnosis advises. Refuses: running anything.
Severities are measured in the end (see ``bench/accuracy``); mild, medium and severe are where we look for them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .plan import Plan, Values, plan_of

LEVELS = ("mild", "medium", "severe")
KINDS = ("cause", "control", "decoy", "several")
ADMIT_FROM = 1.15
"""The own repair must make the job at least this many times as fast."""
LOOK_ALIKE_BELOW = 1.10
"""No other repair may make it this many times as fast."""
DECOY_BELOW = 1.05
"""A decoy whose repair gains more than this is a fault."""
CPUS = 16
"""Of the machine that the table is written for; worker counts follow the real number."""


def repairs(cpus: int = CPUS) -> dict[str, Values]:
    """Named changes of a plan. Several cases share one; for most cases most of them repair nothing."""
    return {
        "more_workers": {"workers": max(2, cpus - 4)},
        "pinned": {"pinned": True},
        "bf16": {"precision": "bf16"},
        "larger_batch": {"batch": 64},
        "in_memory": {"store": "memory"},
        "packed": {"store": "packed"},
        "light_transform": {"filters": 0},
        "one_thread": {"threads": 1},
        "no_quota": {"quota_cores": 0.0},
        "persistent": {"persistent": True},
        "join_in_worker": {"collate": "worker", "parts": 1},
        "working_lock": {"guard": False},
        "save_rarely": {"save_every": 0},
        "review_rarely": {"review_every": 0},
        "log_rarely": {"log_every": 0},
        "fewer_stalls": {"review_every": 0, "log_every": 0},
        "no_checks": {"checks": 0, "read_loss": False},
        "graphs": {"graphs": True, "optimizer": "fused"},
        "fused_optimizer": {"optimizer": "fused"},
        "frozen_heap": {"freeze": True, "collect_every": 0},
        "no_side_threads": {"side_threads": 0},
        "one_shape": {"shapes": 1},
        "fused_chain": {"chain": 0},
        "on_gpu": {"device": "cuda"},
        "narrow_payload": {"payload": "uint8"},
        "keep_cache": {"release_every": 0},
        "alone": {"neighbour": 0},
        "quiet_host": {"crowd": 0},
        "work_in_workers": {"host_filters": 0},
        "vectorised": {"vectorised": True},
        "prefetch": {"prefetch": 8},
    }


REMEDIES: dict[str, str] = {
    "loader_in_main_process": "more_workers",
    "loader_too_few_workers": "more_workers",
    "loader_slow_transform": "light_transform",
    "loader_storage_bandwidth": "in_memory",
    "loader_storage_latency": "in_memory",
    "loader_small_files": "packed",
    "loader_worker_restart": "persistent",
    "loader_collate_or_ipc": "join_in_worker",
    "loader_hung": "working_lock",
    "cpu_oversubscribed": "one_thread",
    "cpu_quota_throttled": "no_quota",
    "host_preprocessing": "work_in_workers",
    "python_bound": "vectorised",
    "launch_bound": "graphs",
    "batch_too_small": "larger_batch",
    "host_sync": "no_checks",
    "gil_contention": "no_side_threads",
    "gc_pauses": "frozen_heap",
    "recompilation": "one_shape",
    "allocator_thrash": "keep_cache",
    "checkpoint_stall": "save_rarely",
    "logging_or_eval_stall": "fewer_stalls",
    "pageable_copies": "pinned",
    "pcie_bound": "narrow_payload",
    "memory_bandwidth_bound": "fused_chain",
    "tensor_cores_unused": "bf16",
    "gpu_shared": "alone",
    "model_on_cpu": "on_gpu",
}
"""What the remedy of a cause's finding changes in a plan."""


def advised_workers(remedy: str) -> int:
    """The worker count that a remedy names; 0 when it names none."""
    found = re.search(r"num_workers=(\d+)", remedy)
    return int(found[1]) if found else 0


def remedy(cause: str, workers: int = 0, cpus: int = CPUS) -> Values:
    """The change that follows from a finding; ``workers`` is the number that its text names. Empty: none known."""
    name = REMEDIES.get(cause)
    if name is None:
        return {}
    if name == "more_workers" and workers:
        return {"workers": workers}
    return dict(repairs(cpus)[name])


@dataclass(frozen=True)
class Case:
    """One job with a label."""

    name: str
    kind: str
    causes: tuple[str, ...]
    """The ids to be named, root first; for controls and decoys nothing may be named."""
    base: Values
    levels: dict[str, Values]
    fixes: tuple[str, ...]
    """The own repair, one per cause."""
    look_alikes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Ids that cannot be told from the label from outside, and whose advice serves as well."""
    fresh: bool = False
    """The repaired job must be a new process: this one cannot change its plan any more, or has warmed something up for
    the next. (A second phase that compiled the same shapes ran 2.24 times as fast as the first, with no repair.)"""
    measured: bool = True
    """False: there is no throughput to repair; the label is true by construction."""
    calibrated: Mapping[str, float] = field(default_factory=dict)
    """``depth`` as a share of the calibrated one, or ``headroom`` of the loader over the GPU."""


CONV: Values = {"net": "conv"}
GPT: Values = {"net": "gpt", "width": 1024, "batch": 16}
ROWS: Values = {"net": "mlp", "width": 1024, "batch": 1024, "depth": 60}
LOADER: Values = {"net": "conv", "source": "loader"}
ALWAYS: dict[str, Values] = {level: {} for level in LEVELS}


def _levels(name: str, mild: Any, medium: Any, severe: Any) -> dict[str, Values]:
    return {"mild": {name: mild}, "medium": {name: medium}, "severe": {name: severe}}


def _input(cpus: int) -> tuple[Case, ...]:
    many = max(2, cpus - 4)
    several = max(2, cpus // 2)
    return (
        Case("workers_zero", "cause", ("loader_in_main_process",), {**LOADER, "workers": 0},
             _levels("filters", 0, 1, 3), ("more_workers",), ("pinned", "bf16", "graphs")),
        Case("few_workers", "cause", ("loader_too_few_workers",), LOADER,
             _levels("workers", 3, 2, 1), ("more_workers",), ("pinned", "persistent", "fused_optimizer")),
        Case("slow_transform", "cause", ("loader_slow_transform",), {**LOADER, "workers": max(2, cpus - 2)},
             _levels("filters", 5, 8, 16), ("light_transform",), ("prefetch", "pinned", "in_memory")),
        Case("slow_storage", "cause", ("loader_storage_bandwidth",),
             {**LOADER, "workers": several, "store": "raw"}, _levels("read_kib", 2048, 6144, 16384),
             ("in_memory",), ("pinned", "light_transform", "one_thread")),
        Case("small_files", "cause", ("loader_small_files",), {**LOADER, "workers": several, "store": "pieces"},
             _levels("pieces", 24, 64, 160), ("packed",), ("pinned", "one_thread", "light_transform")),
        Case("remote_store", "cause", ("loader_storage_latency",), {**LOADER, "workers": several, "store": "http"},
             _levels("delay_ms", 3.0, 8.0, 30.0), ("in_memory",), ("pinned", "light_transform", "one_thread")),
        Case("thread_crowd", "cause", ("cpu_oversubscribed",), {**LOADER, "workers": many, "mixes": 1},
             _levels("threads", 4, 8, 16), ("one_thread",), ("in_memory", "prefetch", "pinned")),
        Case("cpu_limit", "cause", ("cpu_quota_throttled",), {**LOADER, "workers": several},
             _levels("quota_cores", 3.5, 2.5, 1.5), ("no_quota",), ("more_workers", "pinned", "in_memory")),
        Case("join_in_main", "cause", ("loader_collate_or_ipc",), {**LOADER, "workers": several, "collate": "main"},
             _levels("parts", 4, 12, 32), ("join_in_worker",), ("prefetch", "in_memory", "light_transform")),
        Case("worker_restart", "cause", ("loader_worker_restart",), {**LOADER, "workers": many, "persistent": False},
             _levels("epoch_steps", 25, 10, 5), ("persistent",), ("pinned", "in_memory", "light_transform")),
        Case("stuck_workers", "cause", ("loader_hung",), {**LOADER, "workers": 4, "guard": True},
             ALWAYS, ("working_lock",), ("more_workers", "pinned", "in_memory"), fresh=True),
    )  # fmt: skip


def _host() -> tuple[Case, ...]:
    return (
        Case("filter_in_loop", "cause", ("host_preprocessing",), {**CONV, "source": "pool"},
             _levels("host_filters", 7, 12, 25), ("work_in_workers",), ("pinned", "graphs", "fused_optimizer")),
        Case("python_rows", "cause", ("python_bound",), CONV, _levels("tokens", 300_000, 500_000, 1_500_000),
             ("vectorised",), ("fused_optimizer", "bf16", "keep_cache"), also=("host_preprocessing",)),
        Case("many_launches", "cause", ("launch_bound",), {**ROWS, "width": 256, "batch": 256},
             _levels("depth", 100, 200, 400), ("graphs",), ("bf16", "pinned", "keep_cache"),
             also=("batch_too_small",)),
        Case("single_updates", "cause", ("launch_bound",), {**ROWS, "optimizer": "single"},
             _levels("depth", 30, 60, 120), ("fused_optimizer",), ("bf16", "pinned", "keep_cache"),
             also=("batch_too_small",)),
        Case("small_batch", "cause", ("batch_too_small",), CONV, _levels("batch", 16, 8, 2), ("larger_batch",),
             ("pinned", "keep_cache", "in_memory"), also=("launch_bound",)),
        Case("checked_blocks", "cause", ("host_sync",), {**ROWS, "batch": 2048, "optimizer": "fused"},
             _levels("checks", 1, 2, 4), ("no_checks",), ("larger_batch", "pinned", "keep_cache")),
        Case("busy_thread", "cause", ("gil_contention",), {**ROWS, "optimizer": "fused"},
             {"mild": {"side_threads": 1, "side_duty": 0.3}, "medium": {"side_threads": 1, "side_duty": 0.6},
              "severe": {"side_threads": 1}}, ("no_side_threads",), ("pinned", "bf16", "keep_cache")),
        Case("collections", "cause", ("gc_pauses",), {**CONV, "heap_k": 2000},
             _levels("collect_every", 25, 10, 3), ("frozen_heap",), ("save_rarely", "pinned", "bf16")),
        Case("new_shapes", "cause", ("recompilation",), {**GPT, "compiled": True, "shapes": 200},
             _levels("shape_steps", 120, 50, 15), ("one_shape",), ("pinned", "fused_optimizer", "keep_cache"),
             calibrated={"depth": 0.3}, fresh=True),
        Case("emptied_cache", "cause", ("allocator_thrash",), CONV, _levels("release_every", 4, 1, 1),
             ("keep_cache",), ("fused_optimizer", "pinned", "bf16"), calibrated={"depth": 0.5}),
        Case("often_saved", "cause", ("checkpoint_stall",), CONV, _levels("save_every", 60, 25, 8),
             ("save_rarely",), ("pinned", "bf16", "fused_optimizer")),
        Case("long_review", "cause", ("logging_or_eval_stall",), {**CONV, "review_items": 40},
             _levels("review_every", 30, 12, 4), ("review_rarely",), ("save_rarely", "pinned", "log_rarely")),
        Case("much_logged", "cause", ("logging_or_eval_stall",), {**CONV, "log_images": 6},
             _levels("log_every", 12, 5, 1), ("log_rarely",), ("save_rarely", "pinned", "review_rarely")),
    )  # fmt: skip


def _gpu() -> tuple[Case, ...]:
    return (
        Case("unpinned", "cause", ("pageable_copies",), {**CONV, "source": "pool", "pinned": False},
             _levels("payload_mb", 110, 220, 450), ("pinned",), ("more_workers", "bf16", "fused_optimizer")),
        Case("wide_payload", "cause", ("pcie_bound",), {**CONV, "source": "pool"},
             _levels("payload_mb", 500, 1000, 2000), ("narrow_payload",), ("bf16", "fused_optimizer", "more_workers"),
             calibrated={"depth": 0.4}),
        Case("plain_floats", "cause", ("tensor_cores_unused",), {**GPT, "precision": "fp32"},
             _levels("wide_share", 0.3, 0.6, 1.0), ("bf16",), ("pinned", "fused_optimizer", "keep_cache"),
             calibrated={"depth": 0.5}),
        Case("long_chain", "cause", ("memory_bandwidth_bound",), GPT, _levels("chain", 16, 40, 80),
             ("fused_chain",), ("pinned", "fused_optimizer", "keep_cache"),
             calibrated={"depth": 0.5}),
        Case("left_on_cpu", "cause", ("model_on_cpu",),
             {**CONV, "device": "cpu", "batch": 4, "depth": 2, "hold_gib": 0.5}, ALWAYS, ("on_gpu",),
             ("fused_optimizer", "pinned", "keep_cache"), fresh=True),
        Case("second_tenant", "cause", ("gpu_shared",), CONV, _levels("neighbour", 1, 1, 2), ("alone",),
             ("pinned", "fused_optimizer", "keep_cache")),
        Case("forgotten", "cause", ("idle_process_holds_memory",), {"net": "none", "hold_gib": 8.0}, ALWAYS, (),
             measured=False),
    )  # fmt: skip


def _quiet(cpus: int) -> tuple[Case, ...]:
    many = max(2, cpus - 4)
    return (
        Case("conv_resident", "control", (), CONV, ALWAYS, ()),
        Case("gpt_resident", "control", (), GPT, ALWAYS, ()),
        Case("conv_loader", "control", (), {**LOADER, "workers": many}, ALWAYS, ()),
        Case("cheap_in_main", "decoy", (), {**LOADER, "workers": 0, "decode": False}, ALWAYS, ("more_workers",)),
        Case("loss_read", "decoy", (), {**GPT, "read_loss": True}, ALWAYS, ("no_checks",)),
        Case("small_unpinned", "decoy", (), {**CONV, "source": "pool", "pinned": False}, ALWAYS, ("pinned",)),
        Case("just_in_time", "decoy", (), {**LOADER, "workers": max(1, cpus // 4)}, ALWAYS, ("more_workers",),
             calibrated={"headroom": 1.12}),
        Case("rarely_saved", "decoy", (), CONV, _levels("save_every", 800, 600, 500), ("save_rarely",)),
        Case("busy_elsewhere", "decoy", (), {**CONV, "crowd": max(1, cpus // 4)}, ALWAYS, ("quiet_host",)),
        Case("full_memory", "decoy", (), {**CONV, "hold_gib": 110.0}, ALWAYS, ()),
        Case("small_collections", "decoy", (), {**CONV, "heap_k": 20}, _levels("collect_every", 40, 20, 10),
             ("frozen_heap",)),
        Case("light_log", "decoy", (), CONV, _levels("log_every", 5, 2, 1), ("log_rarely",)),
        Case("quiet_thread", "decoy", (), {**GPT, "side_threads": 1}, _levels("side_duty", 0.01, 0.02, 0.04),
             ("no_side_threads",)),
        Case("single_updates_hidden", "decoy", (), {**CONV, "optimizer": "single"}, ALWAYS, ("fused_optimizer",)),
        Case("cache_rarely_emptied", "decoy", (), CONV, _levels("release_every", 200, 150, 100), ("keep_cache",)),
    )  # fmt: skip


def _several(cpus: int) -> tuple[Case, ...]:
    several = max(2, cpus // 2)

    def both(name: str, first: tuple[str, str], second: tuple[str, str], base: Values, levels: dict[str, Values],
             **more: Any) -> Case:  # fmt: skip
        return Case(name, "several", (first[0], second[0]), base, levels, (first[1], second[1]), **more)

    few, saved = ("loader_too_few_workers", "more_workers"), ("checkpoint_stall", "save_rarely")
    return (
        both("few_and_saved", few, saved, {**LOADER, "workers": 2}, _levels("save_every", 30, 15, 8)),
        both("few_and_shared", few, ("gpu_shared", "alone"), {**LOADER, "workers": 2}, _levels("neighbour", 1, 1, 2)),
        both("pieces_and_threads", ("loader_small_files", "packed"), ("cpu_oversubscribed", "one_thread"),
             {**LOADER, "workers": several, "store": "pieces", "pieces": 48, "mixes": 1},
             _levels("threads", 4, 8, 16)),
        both("checks_and_launches", ("host_sync", "no_checks"), ("launch_bound", "fused_optimizer"),
             {**ROWS, "optimizer": "single"}, _levels("checks", 1, 2, 4)),
        both("saved_and_logged", saved, ("logging_or_eval_stall", "log_rarely"),
             {**CONV, "save_every": 20, "log_images": 6}, _levels("log_every", 10, 5, 2)),
        both("unpinned_and_filtered", ("pageable_copies", "pinned"), ("host_preprocessing", "work_in_workers"),
             {**CONV, "source": "pool", "pinned": False, "payload_mb": 300}, _levels("host_filters", 2, 5, 10)),
    )  # fmt: skip


def table(cpus: int = CPUS) -> dict[str, Case]:
    """All cases by name, for a machine with so many CPUs."""
    cases = (*_input(cpus), *_host(), *_gpu(), *_quiet(cpus), *_several(cpus))
    return {case.name: case for case in cases}


DRAWN = frozenset({
    "filters", "read_kib", "pieces", "delay_ms", "quota_cores", "parts", "epoch_steps", "host_filters", "tokens",
    "collect_every", "shape_steps", "save_every", "review_every", "log_every", "payload_mb", "chain", "depth",
})  # fmt: skip
"""Parameters that a seed varies by up to a fifth, so that a new draw differs from those that rules were fitted on."""


def draw(case: Case, level: str, seed: int) -> Values:
    """The fault's parameters for this level and seed; seed 0 is the table itself."""
    values = dict(case.levels[level])
    if seed:
        chooser = random.Random(f"{seed}/{case.name}/{level}")  # noqa: S311 (parameters, not secrets)
        for name in sorted(DRAWN & set(values)):
            factor = chooser.uniform(0.8, 1.2)
            old = values[name]
            values[name] = (
                round(old * factor, 2) if isinstance(old, float) else max(1 if old else 0, round(old * factor))
            )
    return values


def plan_for(case: Case, level: str, seed: int, sizes: Mapping[str, float]) -> Plan:
    """The ailing plan. ``sizes``: calibrated depth per network, and ``decode_ms`` and ``step_ms`` for just-in-time."""
    values: Values = {**case.base, **draw(case, level, seed)}
    net = values.get("net", "conv")
    if "depth" not in values and net in sizes:
        share = float(case.calibrated.get("depth", 1.0))
        headroom = case.calibrated.get("headroom")
        if headroom and sizes.get("decode_ms") and sizes.get("step_ms"):
            needed_ms = headroom * 64 * sizes["decode_ms"] / max(1, values["workers"])
            share = needed_ms / sizes["step_ms"]
        values["depth"] = max(1, round(sizes[net] * share))
    return plan_of(values)
