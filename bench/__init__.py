"""What gpuwatch costs: run ``make bench`` or ``python bench/run.py``.

Owns: measuring our own processes from outside. Refuses: budgets as verdicts; the tests assert calls and bytes.
"""
