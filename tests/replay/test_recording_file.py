"""What a user loses when a recording is damaged, foreign, newer or half written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from diagnose import builders as b

from gpuwatch.errors import CannotCreateError, InputNotFoundError, RecordingError
from gpuwatch.model import DeviceSample, Observation, SourceLine, StepReport
from gpuwatch.replay.format import Writer, read_header, read_observations


def everything() -> list[Observation]:
    return [
        b.inventory(),
        *b.gpu([50.0, 0.0]),
        *b.host(),
        *b.ticks(b.process(b.PID, 1.0), [b.process(5001, 0.5)], quota=(1.5, 0.5)),
        *b.stacks([(b.WAITING, False), (b.LAUNCHING, True)]),
        SourceLine(b.PID, 1, "/home/ann/fit.py", 35, "loss.item()"),
        StepReport(b.PID, 10**12, 500, 3, 490, 200, 100, 60, 7, b.PID),
        StepReport(b.PID, 10**12, 500, 3, 490, 200),
    ]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "job.gwrec"
    with Writer(path, 1_700_000_000_000_000_000, note="a note") as writer:
        for observation in everything():
            writer.write(observation)
    return path


def test_every_kind_of_observation_comes_back_equal(recording: Path) -> None:
    assert list(read_observations(recording)) == everything()


def test_the_file_explains_itself_without_gpuwatch(recording: Path) -> None:
    lines = [json.loads(line) for line in gzip.decompress(recording.read_bytes()).splitlines()]
    assert lines[0]["gpuwatch_recording"] == 1
    assert lines[0]["note"] == "a note"
    names = lines[0]["fields"]["DeviceSample"]
    first = next(line["v"] for line in lines[1:] if line["k"] == "device")
    assert dict(zip(names, first, strict=True))["busy_pct"] == 50.0
    assert lines[-1] == {"k": "end", "v": {"observations": len(everything())}}


def test_the_same_observations_give_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / "a.gwrec", tmp_path / "b.gwrec"]
    for path in paths:
        with Writer(path, 10**18) as writer:
            for observation in everything():
                writer.write(observation)
    decompressed = [gzip.decompress(path.read_bytes()) for path in paths]
    assert decompressed[0] == decompressed[1]


@pytest.mark.parametrize("keep", [0.5, 0.7, 0.95])
def test_a_truncated_file_is_refused_with_what_it_still_has_and_the_remedy(recording: Path, keep: float) -> None:
    data = recording.read_bytes()
    recording.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(RecordingError, match=r"job\.gwrec: .*after \d+ observations.*--partial"):
        list(read_observations(recording))


def test_partial_gives_what_a_truncated_file_still_has(recording: Path) -> None:
    data = recording.read_bytes()
    recording.write_bytes(data[: int(len(data) * 0.7)])
    found = list(read_observations(recording, partial=True))
    assert found == everything()[: len(found)]
    assert len(found) > 10


def test_a_recorder_that_was_killed_leaves_what_it_had_flushed(tmp_path: Path) -> None:
    path = tmp_path / "killed.gwrec"
    writer = Writer(path, 10**18)
    for observation in everything()[:50]:
        writer.write(observation)
    writer.flush()
    assert list(read_observations(path, partial=True)) == everything()[:50]
    writer.close()


def test_a_cut_at_a_line_end_is_still_known_for_truncated(tmp_path: Path, recording: Path) -> None:
    lines = gzip.decompress(recording.read_bytes()).splitlines(keepends=True)
    cut = tmp_path / "cut.gwrec"
    cut.write_bytes(gzip.compress(b"".join(lines[:-20])))
    with pytest.raises(RecordingError, match="truncated"):
        list(read_observations(cut))


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", gzip.compress(b"{}\n"), gzip.compress(b"not json\n"), b"\x1f\x8b\x08"]
)
def test_a_foreign_file_is_called_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gwrec"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"x\.gwrec: not a gpuwatch recording"):
        list(read_observations(path))


def test_a_newer_format_says_which_gpuwatch_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "new.gwrec"
    header = {"gpuwatch_recording": 2, "created_wall_ns": 1, "gpuwatch_version": "9.1"}
    path.write_bytes(gzip.compress(json.dumps(header).encode() + b"\n"))
    with pytest.raises(RecordingError, match=r"format 2 \(written by gpuwatch 9\.1\)"):
        read_header(path)


def test_kinds_of_a_later_minor_version_are_passed_over(tmp_path: Path, recording: Path) -> None:
    lines = gzip.decompress(recording.read_bytes()).splitlines(keepends=True)
    lines.insert(3, b'{"k":"nvlink_topology","v":[1,2]}\n')
    later = tmp_path / "later.gwrec"
    later.write_bytes(gzip.compress(b"".join(lines)))
    assert list(read_observations(later)) == everything()


def test_samples_with_fields_of_a_later_version_are_read(tmp_path: Path, recording: Path) -> None:
    lines = gzip.decompress(recording.read_bytes()).splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if line.startswith(b'{"k":"device"'))
    lines[place] = lines[place].replace(b"]}\n", b',"new field"]}\n')
    later = tmp_path / "later.gwrec"
    later.write_bytes(gzip.compress(b"".join(lines)))
    assert isinstance(list(read_observations(later))[1], DeviceSample)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match="gpuwatch record"):
        list(read_observations(tmp_path / "nope.gwrec"))


def test_a_folder_that_is_not_there_cannot_be_written_to(tmp_path: Path) -> None:
    with pytest.raises(CannotCreateError, match=r"cannot write .*No such file"):
        Writer(tmp_path / "no" / "where.gwrec", 1)
