"""A probe that is ended early leaves no file behind: not the 1 GiB of storage, no compile cache, no meeting place."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from probes import disk, scratch

ROOT = Path(__file__).parents[2]
HOLD = """
import os, signal, sys, time
from pathlib import Path
from probes import command, scratch
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever it is where the tests run
with command.leaving(), scratch.folder(sys.argv[2], sys.argv[1]) as folder, scratch.nameless(folder / "file") as path:
    path.write_bytes(b"x" * 4096)
    (folder / "small").write_bytes(b"y")
    print("ready", flush=True)
    time.sleep(60)
"""
UNDER_NOHUP = HOLD.replace("SIG_DFL", "SIG_IGN")


def held(folder: Path, kind: str = "storage", script: str = HOLD) -> subprocess.Popen[str]:
    """A process in the middle of its work in a folder of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder), kind], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("kind", scratch.KINDS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_probe_that_is_asked_to_end_clears_its_folder(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    with held(tmp_path, kind) as process:
        assert [path.name.startswith(f"gpuwatch-{kind}-") for path in tmp_path.iterdir()] == [True]
        process.send_signal(number)
        assert process.wait(timeout=20) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_probe_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    with held(tmp_path, script=UNDER_NOHUP) as process:
        process.send_signal(signal.SIGHUP)  # the lower number: it would be the one that ends it
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM


def test_a_probe_that_is_killed_leaves_no_large_file_and_the_next_one_clears_the_rest(tmp_path: Path) -> None:
    with held(tmp_path) as process, held(tmp_path) as alive:
        process.kill()
        process.wait(timeout=20)
        names = sorted(path.name for folder in tmp_path.iterdir() for path in folder.iterdir())
        assert names == [scratch.MARK, scratch.MARK, "small", "small"], "the large file has no name any more"
        scratch.sweep(tmp_path)
        (left,) = tmp_path.iterdir()
        assert (left / "small").exists(), "the one that runs keeps its own"
        alive.terminate()
        alive.wait(timeout=20)
    assert list(tmp_path.iterdir()) == []


def test_workers_that_were_forked_keep_the_folder_and_end_at_the_first_signal(tmp_path: Path) -> None:
    forks = HOLD.replace('print("ready", flush=True)', "os.fork() or print(os.getpid(), flush=True)")
    with subprocess.Popen(
        [sys.executable, "-c", forks, str(tmp_path), "compile"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
        process.wait(timeout=20)
        scratch.sweep(tmp_path)
        assert len(list(tmp_path.iterdir())) == 1, "a worker is still there"
        os.kill(worker, signal.SIGTERM)
        process.stdout.read()  # it ends with the worker
    assert len(list(tmp_path.iterdir())) == 1, "a worker clears nothing that is not its own"
    scratch.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_only_what_is_ours_and_abandoned_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh, old, other = (tmp_path / name for name in ("gpuwatch-storage-a", "gpuwatch-compile-b", "gpuwatch-else-c"))
    for folder in (fresh, old, other):
        folder.mkdir()
    (tmp_path / "gpuwatch-ranks-link").symlink_to(other)
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    scratch.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "gpuwatch-else-c",
        "gpuwatch-ranks-link",
        "gpuwatch-storage-a",
    ], "of an older version, a day after"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    os.utime(fresh, (0, 0))
    scratch.sweep(tmp_path)
    assert fresh.exists(), "somebody else's"
    scratch.sweep(tmp_path / "none")


def test_a_file_without_a_name_is_read_past_the_cache_as_any_other(tmp_path: Path) -> None:
    with scratch.nameless(tmp_path / "file") as path:
        assert list(tmp_path.iterdir()) == []
        checks, _rates = disk.write_random(path, 2)
        assert len(checks) == 2
        reader, _direct = disk.open_reader(path, disk.MIB)
        with reader:
            reader.evict()
            assert len(reader.read(1)) == disk.MIB
            assert 0.0 <= reader.resident_share() <= 1.0
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_reopens_no_deleted_file_keeps_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def refuse(path: str, *rest: int, dir_fd: int | None = None) -> int:
        if str(path).startswith("/proc/"):
            raise OSError(2, "No such file or directory")
        return really(path, *rest, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    with scratch.folder("storage", str(tmp_path)) as folder, scratch.nameless(folder / "file") as path:
        assert path == folder / "file"
        assert len(disk.write_random(path, 1)[0]) == 1
    assert list(tmp_path.iterdir()) == []


def test_without_locks_a_folder_is_made_and_removed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_about: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with scratch.folder("storage", str(tmp_path)) as folder:
        scratch.sweep(tmp_path)
        assert folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_storage_probe_that_is_stopped_leaves_the_users_cache_as_it_was(tmp_path: Path) -> None:
    arguments = ["storage", "--device", "cpu", "--size", "8", "--seconds", "60", "--path", str(tmp_path), "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "probes", *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("storage: "):  # it takes longer than two seconds, so it says what it does
                break
        large = [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > disk.MIB]
        assert large == []
        process.terminate()
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    assert list(tmp_path.iterdir()) == []
