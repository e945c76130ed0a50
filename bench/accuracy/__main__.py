"""``python -m bench.accuracy [FOLDER …]``: score recordings of labelled jobs.

Owns: the command line. Refuses: everything else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.accuracy.labels import FirstSight, Run, read, stamp
from bench.accuracy.report import LIBRARIES, goals, page
from bench.accuracy.score import Scored, at_first_sight, score, summary
from gpuwatch.errors import GpuwatchError

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "recordings"
FOLDERS = (RECORDINGS, RECORDINGS / "faults", RECORDINGS / LIBRARIES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, the error's own for a folder that cannot be read, 1 with --check when the page is out of date."""
    parser = argparse.ArgumentParser(prog="accuracy", description="Score recordings of labelled jobs.")
    parser.add_argument("folders", nargs="*", type=Path, help="with results*.json (default: those of the repository)")
    parser.add_argument("--out", type=Path, help="write the page here (default: print it)")
    parser.add_argument("--check", type=Path, metavar="PAGE", help="exit code 1 when PAGE is not what would be written")
    parser.add_argument("--json", action="store_true", help="one JSON object with the scores instead of the page")
    parser.add_argument(
        "--first-sight",
        metavar="REVISION",
        help="write what is said now, by the rules of this revision, into results that lack it",
    )
    options = parser.parse_args(arguments)
    try:
        runs = read(options.folders or [folder for folder in FOLDERS if folder.is_dir()])
    except GpuwatchError as exc:
        print(f"accuracy: {exc}", file=sys.stderr)
        return exc.exit_code
    scored, unscored = _all(runs)
    if options.first_sight:
        return _first_sight(options.first_sight, scored)
    text = as_json(scored) if options.json else page(scored, unscored)
    if options.check:
        if options.check.is_file() and options.check.read_text(encoding="utf-8") == text:
            return 0
        print(f"accuracy: {options.check} is out of date: python -m bench.accuracy --out {options.check}",
              file=sys.stderr)  # fmt: skip
        return 1
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


def _first_sight(rules: str, scored: Sequence[Scored]) -> int:
    by_folder: dict[str, dict[str, FirstSight]] = {}
    for s in scored:
        sight = FirstSight(rules, s.answer, s.named, s.advised_workers, s.confidence, s.answers, s.bound)
        by_folder.setdefault(s.run.folder, {})[s.run.file] = sight
    for folder, sights in by_folder.items():
        print(f"{folder}: {stamp(Path(folder), sights)} first sights written")
    return 0


def _all(runs: Sequence[Run]) -> tuple[list[Scored], list[Run]]:
    """Scores, and the runs without a readable recording: one damaged file does not cost the others."""
    scored, unscored = [], []
    for run in runs:
        if not run.file:
            unscored.append(run)
            continue
        try:
            scored.append(score(run))
        except GpuwatchError as exc:
            error = str(exc).replace(f"{run.folder}/", "")
            unscored.append(msgspec.structs.replace(run, error=error))
    return scored, unscored


def as_json(scored: Sequence[Scored]) -> str:
    """Scores by half, and one object per run."""
    halves = {
        "first_sight": [first for s in scored if (first := at_first_sight(s)) is not None],
        "now": [s for s in scored if s.run.fault is not None],
        "known": [s for s in scored if s.run.fault is None],
    }
    document = {
        "schema": "gpuwatch.accuracy/1",
        "halves": {name: {"summary": summary(half), "goals": goals(summary(half))} for name, half in halves.items()},
        "runs": [_row(s) for s in scored],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def _row(s: Scored) -> dict[str, object]:
    run: Run = s.run
    return {
        "case": run.case, "level": run.level, "seed": run.seed, "file": run.file, "truth": s.truth,
        "standing": s.label.standing, "reason": s.label.reason, "answer": s.answer, "right": s.right,
        "named": s.named, "by_seconds": s.answers, "advised_rate": s.advised_rate, "best_rate": s.best_rate,
        "without_stacks": s.blind_answer, "peers": {name: a.said for name, a in s.peer_answers.items()},
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
