"""gpuwatch: why is this GPU not doing useful work, and what should its owner change?

Owns the version. Imports nothing, so that every entry point pays only for what it uses.
"""

__version__ = "0.1.0"
