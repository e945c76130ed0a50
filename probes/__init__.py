"""Torch workloads that say what this machine can reach, one process per run.

Owns: running one workload correctly once and printing one JSON object. Refuses: statistics across runs, judging a
machine, NVML, and any import from gpuwatch. Only the standard library and torch are needed (Pillow is used when it
is there), and Python 3.8 with torch 2.0 is enough, so that every environment's own Python can run it.

In the checkout: ``python -m probes matmul``. Anywhere: ``python /path/to/this/folder matmul``.
"""
