"""Every number that the rules compare with, and where it came from.

Owns: the thresholds. Refuses: using them. "H200 set" means the known-cause recordings under tests/recordings, made on
one H200 with driver 580.159; "literature" means the thresholds on which other tools converge (docs/causes.md).
"""

from __future__ import annotations

NAMED_FROM = 0.10
"""A cause that explains less of the wall time is not named (literature: input wait 10-15 % warns)."""
CRITICAL_FROM = 0.50
"""Half of the wall time lost to one cause."""
HEALTHY_LOST_BELOW = 0.15
"""A healthy ResNet-50 on the H200 set loses 8 % (start of the loop included)."""

IDLE_WINDOW_BUSY = 0.05
"""A GPM window counts as idle below this. H200 set: starved jobs read 0.0, the slowest launch-bound job 18.7 %."""
NO_ACTIVITY_BUSY = 0.005
"""The GPU did nothing. H200 set: a forgotten notebook reads 0.0000, every working job above 3.9 %."""
IDLE_CPU_CORES = 0.05
"""A process that computes less than this is waiting. H200 set: notebook 0.00, starved main thread 0.03-0.1."""
BUSY_CPU_CORES = 0.70
"""A DataLoader worker above this is bound by its CPU. H200 set: JPEG worker 0.99, remote-store workers 0.02."""
WAITING_CPU_CORES = 0.45
"""A worker below this mostly waits for something else than a CPU."""
MANY_CORES = 1.5
"""More than one thread of Python and its transfers use: the training process computes with a library's threads."""
CPU_OPERATORS_CORES = 2.5
"""From so many cores in the training process, its operators may run on them: handing out work to the GPU takes one,
autograd and the pinning of batches up to another. A choice."""
SAVING_BYTES_PER_S = 30e6
"""To storage, by the training process. H200: jobs that save often 130 to 185 MB/s, one that logs pictures 4 MB/s."""
MAIN_BUSY_CORES = 0.60
"""The main thread drives or computes. H200 set: launch-bound 1.0, host preprocessing 1.0, waiting for data 0.1."""

WORKER_QUEUE_IDLE = 0.50
"""Workers that wait for work this often are ahead of the main process: the loader's transfer is slow, not they."""
IDLE_WORKER = 0.80
"""Share of a worker's own stacks in which it waits for work, from which it has none. A choice: with the three or four
samples that a short window has of each, a worker that waits for a third of its time is taken for idle by one in 27."""
WORKER_STACKS = 3
"""Fewer samples of one worker do not tell it from the others."""
NO_WORK_CORES = 0.005
"""A worker below this had not one sample to prepare. Recordings from the H200: hung workers 0.000, those that wait for
a remote store 0.01."""
UNPACKING = 0.20
"""Share of the samples in which the training process takes batches apart, from which that is what it waits for.
Recordings from the H200: 0.83 and 0.95 where the hand-over was the cause, at most 0.12 elsewhere."""
ONE_AT_WORK = 0.5
"""Workers at work at any time, on average, from which one may be what all wait for. A choice: half the time."""
MULTITHREADED_CORES = 1.1
"""A worker that uses more than one core computes in several threads; idle pools do not count."""
MULTITHREADED_THREADS = 4
"""A DataLoader worker has two or three threads of its own (H200 set: 3)."""
WORKER_GENERATIONS = 3.0
"""One exchange is the edge of an epoch; two within seconds are a habit."""
WORTHWHILE = 1.15
"""More workers by less than this factor are not worth an advice."""
HOST_CPU_FULL_PCT = 85.0
"""Above this more workers find no core."""
DISK_WAIT_STATE = 0.20
"""Share of worker readings in state D from which storage is the reason. H200: workers that read 64 files of 8 KiB per
sample 0.22 to 0.38, workers that decode from memory 0."""
PSI_IO_PCT = 10.0
MOSTLY = 0.5
"""Share of the workers' waits that are of one kind, from which it names them. A choice: half."""
SMALL_READS_PER_S = 500.0
SMALL_READ_BYTES = 64 * 1024
THROTTLED_PERIODS = 0.10
"""Share of scheduler periods in which the job's cgroup was throttled (H200 set: 0.5-1.0 under quota, 0 else)."""

RUN_WAIT_SHORT = 0.20
"""Share of the time that a thread is ready to run and has no CPU. Recordings from the H200: at most 0.01 in jobs that
have their cores, 0.26 to 0.52 (training thread) and 0.49 to 0.84 (workers) under a quota or on crowded cores."""
WAITS_OVER_RUNS = 0.5
"""Waiting for a CPU over having one, from which the wait is the cause. A choice: two workers on one CPU read 1.0."""
WAITS_OVER_RUNS_FULL = 1.5
"""The same on a machine that is full. A choice above 1.0: what a loader with a slow transform read beside another rank
on two CPUs, where the transform was the planted cause (tests/recordings/ranks)."""
READY_UNSERVED = 0.40
"""Share of the readings in state R, less the cores used, that says the same. Recordings from the H200: at most 0.26 in
jobs that have their cores (30 readings), 0.48 to 0.81 in workers under a quota."""
OTHERS_SHARE = 0.25
"""Of the machine's CPUs in use by other processes, from which they are named. A choice."""
FILLED = 0.70
"""Share of the CPUs that a job is bound to, from which it is taken to use them up. A choice."""

COPY_BYTES_PER_S = 1.0 * 2**30
"""PCIe traffic in a window from which the line is called a copy. H200 set: pageable copies 6.6 GiB/s on average,
a host-bound job 0.3 on average with copies in one window of five."""
SLOW_COPY_LINK_SHARE = 0.08
"""Of what pinned copies reach: slower than any copy from pageable memory (H200: 7 to 9 of 48 GiB/s). A thread that
copied all the time would move at least this."""
PINNED_LINK_SHARE = 0.60
"""A copy at more than this share of the link is not slowed down by pageable memory."""
NOTHING_BUT = 0.8
"""Share of the native stacks on a line; the few others are Python's own steps around the call."""
SEEN_NATIVELY = 2
"""Stacks of earlier looks on a line, from which on it is not looked at again: a look has 14, and one of them may be the
exception."""
COPY_OF_WAIT = 0.25
"""Share of the time on a line that copies, that its bytes must take for the wait to be the copy's."""
LINK_SHARE_NAMED = 0.25
GPU_TIME_EXPLAINED = 0.85
"""Busy and copying together, from which copies between the kernels are why it is not busy. H200: 1 GB pinned per step,
busy 0.48 and 0.59 of the link's time; jobs with loaders copy for less than 0.01."""
PINNED_BYTES_PER_S = {"9.0": 52e9, "10.0": 52e9, "8.0": 25e9, "8.6": 25e9, "8.9": 25e9, "7.5": 12e9, "7.0": 12e9}
"""What pinned copies reach, by compute capability, when no probe has measured it here: PCIe 5, 4, 3 ×16. The H200
of the recordings reached 56.5 GiB/s."""
PINNED_BYTES_PER_S_DEFAULT = 25e9

GPM_LAG_NS = 110_000_000
"""GPM counters arrive late: what a window says happened about this long before. ``python -m bench.counter_lag``: over
the 17 recordings from one H200 (driver 580) that show it, the training steps correlate with ``busy`` by 0.71 on average
at a shift of 100 ms, by 0.68 at 120 ms, and by 0.39 without."""
GPM_LAGS_NS = (0, 60_000_000, 170_000_000, 240_000_000, 320_000_000, 500_000_000)
"""Other lags that a job may show; other drivers and cards have not been measured."""
LAG_SEEN = 0.15
"""Share of the samples that the rarer kind must have: an edge of the window shifts into agreement with anything."""
LAG_AGREES = 0.6
LAG_AGREES_BETTER = 0.2
"""Than the known one. Of 71 recordings with the known lag none shows another by this much."""

LAUNCH_NAMED_FROM = 0.25
"""Below this the gaps between kernels are those of a job that keeps its GPU busy from eager mode, and told as a note.
H200: a GPT that idles 20 % this way got slower (0.69x) by CUDA graphs; launch-bound jobs lose 48 % and more."""

EXPOSED_FROM = 0.07
"""Waits for the GPU in a job whose launches are exposed: their own loss understates them (H200: one value read per
layer loses 10 % in the waits, 60 % in the launches between)."""
EXPOSED_SAMPLES = 5.0

STEADY_BUSY = 0.15
"""Standard deviation of the busy share from window to window. H200: launch-bound jobs 0.01 to 0.09, one that reviews
its model every dozen steps 0.32 and 0.35."""
LAUNCH_LIMITS = 1.25
"""Share of the time that the thread launches, over the share that the GPU computes, from which launching itself is the
limit. H200: launch-bound jobs 3.7 and 4.3; a job that empties its cache each step 0.9, one with a slow metric 1.0."""
SMALL_GRID_SM_OF_BUSY = 0.40
"""SM active over busy below this while busy: kernels too small to fill the GPU. H200 set: ResNet 0.92, launch-bound
1.2/26 = 0.05, item per layer 0.18."""
BANDWIDTH_BOUND_DRAM = 0.52
"""DCGM calls 0.8 the practical peak; a copy reads 88 %, an elementwise chain 83 %, ResNet-50 43 %."""
BANDWIDTH_BOUND_TENSOR = 0.20
ASKED_AGAIN = 2.0
"""Time that an emptied cache costs in all, over the time within the call that empties it. H200: emptied each step, 25 %
of the time in that call and 49 % of the speed lost: the driver is asked for the same memory within the launches."""
TENSOR_UNUSED = 0.25
"""Of the FP32 pipe's share. H200: a GPT of which 60 % run in fp32 reads 4 % tensor and 60 % FP32 (bf16 makes it 3.5x as
fast); bf16 jobs read 5 to 20 times as much tensor as FP32."""
FP32_HEAVY = 0.25
"""fp32 GEMM reads 77 % on the FP32 pipe, bf16 ResNet-50 3 %."""
DRAM_REACHED = 0.88
"""A copy reads 88 % DRAM activity: more there is not (H200)."""
FP32_REACHED = 0.77
"""A matrix product in fp32 reads 77 % on the FP32 pipe (H200)."""
TENSOR_OVER_FP32 = 15.0
"""bf16 on tensor cores over fp32 without: 989 and 67 TFLOP/s (H100 and H200 data sheets)."""
THROTTLED_WINDOWS = 0.10
LINK_DEGRADED = 0.6
"""A generation less or half the lanes is half the speed; between that and full speed there is nothing."""
LEAK_WINDOW_S = 15.0
LEAK_READINGS = 9
LEAK_STEP_BYTES = 64 * 2**20
"""Growth in each third of the window. PyTorch's allocator asks the driver for 2 to 20 MiB at a time below that size."""

TENANT_CPU_CORES = 0.20
"""Another process on the GPU counts as a working tenant from here, where the driver does not tell its SM use (H200:
1.0 core beside 42 % of the SM time)."""
MIN_STACKS = 8
"""Fewer samples of the main process say too little to split time by."""
SURE_STACKS = 30
"""Below this a share of 0.1 is three samples or fewer: no verdict that rests on it is sure."""
MIN_WINDOW_S = 3.0
RESTS_ALL_THE_TIME = 0.8
"""Share of the stacks, or of the readings of the kernel function, from which a process waits in one thing. A choice:
one that sleeps shows 1.0 (H200: forgotten notebook, two jobs that waited for a message)."""
FORGOTTEN_FROM_S = 60.0
"""A window in which nothing at all happened, from which no wait of a job that goes on is the likelier reason. A choice:
builds of data sets, of extensions and of caches take longer too, and their stacks say so."""
MEMORY_MOVES_BYTES = 2 * 2**20
"""PyTorch asks the driver for no less at a time; a process that rests asks for nothing."""
HUNG_FROM_S = 5.0
STARTUP_SHARE = 0.50
STEPS_BETWEEN = 2
"""Samples with a busy GPU between two compilations: 0.2 s of steps at ten a second."""
BUSY_BETWEEN = 0.30
MEMORY_HEADROOM = 0.50
"""Free memory from which "larger batch" is a remedy (ICSE'24: peak memory ≤ 50 %)."""
WORKER_HEADROOM = 1.25
"""Advised workers over the bare need: batches vary, and one core runs the training loop."""

GIL_ELSEWHERE = 0.15
"""Share of samples in which a thread that competes holds the interpreter lock. H200: one that computes in Python 60 %
of the time reads 0.61, jobs without one at most 0.01 (pin_memory and autograd threads left out)."""
SHM_FULL = 0.90
SWAP_PSI_MEMORY_PCT = 5.0
NEARLY_FULL_MEMORY = 0.97
PYTHON_LINES = 4
"""Distinct lines of the user's code on which the thread stands with the interpreter lock held: Python itself is the
work. A vectorised step stands on one or two (H200 set: numpy preprocessing on one line for 43 of 82 samples)."""
PYTHON_ONE_LINE = 0.80
"""Of the samples, on one line: a call. H200: scikit-learn's metric, called in one line, has 93 % there."""
PYTHON_GIL = 0.30
"""py-spy sees the holder in a part of the samples only, when it does not stop the job (H200 set: 0.13 of a job that
holds the lock all the time between its launches, 0.01 of one that computes in numpy)."""
STRAGGLER_GAP = 0.20
"""Busy share by which a rank must idle more than the one that waits for it, or SM share by which it must work longer.
Waiting in NCCL reads busy near 1, and SM active of the few SMs that its kernel holds."""

NVLINK_BYTES_PER_S = {"9.0": 450e9, "10.0": 900e9, "8.0": 300e9}
"""Each way, of all links of a GPU, by compute capability (data sheets of H100 and H200 SXM, B200, A100 SXM)."""
NVLINK_BYTES_PER_S_DEFAULT = 300e9
RING_LINK_SHARE = 0.80
"""Of the links' rate that a large all-reduce over a ring moves. nccl-tests, published: 8 H100 reach 360 of 450 GB/s
without in-network reduction. Not measured by us: no machine with two GPUs was to be had."""
