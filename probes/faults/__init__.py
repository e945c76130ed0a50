"""Training jobs with a known cause of slowness, to score a diagnosis against.

Owns: one neutral job (``train.py``), the table of what is wrong with it and what repairs it (``cases.py``), and the
runner for one GPU (``run.py``). Refuses: judging, and any import from gpuwatch; the runner only starts it.

A label is an experiment, not an opinion: a run counts for its cause when repairing that cause makes it at least
1.15 times as fast, and when no repair of something else makes it 1.10 times as fast.

The job gets what is wrong with it over a file descriptor, so that no argument, variable, file name or function name
tells a diagnosis that reads them. Both phases of a run, ailing and repaired, are the same process.
"""
