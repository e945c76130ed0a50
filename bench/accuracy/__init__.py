"""Scores a diagnosis on recordings of labelled jobs, without a GPU: ``python -m bench.accuracy [FOLDER …]``.

Owns: which labels count, the scores, the published rules of other tools on the same bytes, and docs/accuracy.md.
Refuses: recording (``probes/faults``) and any rule of gpuwatch's own.
"""
