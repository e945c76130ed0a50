"""The files that the stores of a job read.

Owns: writing them. Refuses: reading (``data.py``).
"""

from __future__ import annotations

import os
from pathlib import Path

PIECE_BYTES, PIECE_FILES = 8192, 16384
FOLDERS = 64


def lay_out(folder: Path, raw_mib: int, piece_files: int) -> None:
    """Write the files that the stores read: one of each kind; kept when already there."""
    noise = os.urandom(1 << 20)
    raw = folder / "a.bin"
    if not raw.exists() or raw.stat().st_size != raw_mib << 20:
        with raw.open("wb") as file:
            for _ in range(raw_mib):
                file.write(noise)
            os.fsync(file.fileno())
    tree = folder / "b"
    for part in range(FOLDERS):
        (tree / str(part)).mkdir(parents=True, exist_ok=True)
    for number in range(piece_files):
        piece = tree / str(number % FOLDERS) / str(number)
        if not piece.exists():
            at = number * 61 % (len(noise) - PIECE_BYTES)
            piece.write_bytes(noise[at : at + PIECE_BYTES])
    os.sync()
