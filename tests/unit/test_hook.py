"""``gpuwatch.hook`` inside a job: what it measures, and that the job runs as without it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpuwatch import hook

HOOK = Path(hook.__file__)
MS = 1_000_000


class Bench:
    """A clock that the loop under test moves, and a receiver that takes or refuses."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * MS
        self.taken: list[dict[str, int]] = []
        self.busy = False

    def clock(self) -> int:
        return self.now_ns

    def spend(self, milliseconds: float) -> None:
        self.now_ns += int(milliseconds * MS)

    def send(self, payload: bytes, now_ns: int) -> bool:
        assert now_ns == self.now_ns
        if not self.busy:
            self.taken.append(json.loads(payload))
        return not self.busy

    def loop(self, *, marked: bool = False) -> hook._Loop:
        return hook._Loop(0 if marked else 7, marked=marked, clock=self.clock, send=self.send)

    def loader(self, *waits_ms: float) -> Iterator[int]:
        for number, wait in enumerate(waits_ms):
            self.spend(wait)
            yield number


def test_the_time_in_next_is_data_wait_and_the_rest_of_a_step_is_not() -> None:
    bench = Bench()
    for _ in hook._measured(bench.loader(100, 100, 250), bench.loop()):
        bench.spend(50)
    assert bench.taken == [
        {
            "gpuwatch_steps": 1, "loop": 7, "thread": threading.get_native_id(), "end_ns": 1_600 * MS,
            "span_ns": 600 * MS, "steps": 3, "step_ns": 600 * MS, "step_max_ns": 300 * MS,
            "wait_ns": 450 * MS, "wait_max_ns": 250 * MS,
        }
    ]  # fmt: skip


def test_a_thousand_steps_a_second_are_two_datagrams_a_second() -> None:
    bench = Bench()
    for _ in hook._measured(bench.loader(*[0.25] * 3000), bench.loop()):
        bench.spend(0.75)
    assert [said["steps"] for said in bench.taken] == [500] * 6
    assert [said["span_ns"] for said in bench.taken] == [500 * MS] * 6


def test_a_loader_that_stalls_at_its_end_has_that_wait_told() -> None:
    bench = Bench()

    def loader() -> Iterator[int]:
        yield 1
        bench.spend(4000)

    for _ in hook._measured(loader(), bench.loop()):
        bench.spend(10)
    assert (bench.taken[-1]["steps"], bench.taken[-1]["wait_ns"]) == (1, 4000 * MS)


def test_workers_that_take_long_to_start_are_data_wait() -> None:
    bench = Bench()

    class Loader:
        def __iter__(self) -> Iterator[int]:
            bench.spend(3000)
            return iter([1])

    for _ in hook._measured(Loader(), bench.loop()):
        bench.spend(10)
    assert bench.taken[0]["wait_ns"] == 3000 * MS


def test_what_a_busy_receiver_does_not_take_goes_with_the_next_sum() -> None:
    bench = Bench()
    bench.busy = True
    for number in hook._measured(bench.loader(*[200] * 6), bench.loop()):
        bench.spend(100)
        bench.busy = number < 3
    assert [(said["steps"], said["span_ns"]) for said in bench.taken] == [(4, 1200 * MS), (2, 600 * MS)]


def test_a_receiver_that_hangs_for_good_does_not_leave_a_sum_of_hours() -> None:
    bench = Bench()
    bench.busy = True
    for number in hook._measured(bench.loader(*[1000] * 30), bench.loop()):
        bench.busy = number < 27
    assert max(said["span_ns"] for said in bench.taken) <= hook.KEEP_NS + hook.TELL_EVERY_NS + 1000 * MS


def test_a_marked_step_says_nothing_of_waits_rather_than_zero() -> None:
    bench = Bench()
    loop = bench.loop(marked=True)
    loop.open(bench.now_ns)
    for took in (200, 100, 300):
        bench.spend(took)
        loop.mark()
    assert len(bench.taken) == 1
    assert "wait_ns" not in bench.taken[0]
    assert (bench.taken[0]["steps"], bench.taken[0]["step_ns"], bench.taken[0]["step_max_ns"]) == (
        *(3, 600 * MS),
        300 * MS,
    )


def test_a_break_tells_the_steps_that_were_complete() -> None:
    bench = Bench()
    batches = hook._measured(bench.loader(*[10] * 100), bench.loop())
    for number in batches:
        bench.spend(10)
        if number == 2:
            break
    batches.close()
    assert [said["steps"] for said in bench.taken] == [2]


def test_whatever_goes_wrong_with_the_sending_stays_away_from_the_job() -> None:
    def send(payload: bytes, now_ns: int) -> bool:
        raise RuntimeError("no")

    bench = Bench()
    loop = hook._Loop(1, marked=False, clock=bench.clock, send=send)
    assert list(hook._measured(bench.loader(600, 600), loop)) == [0, 1]


class Loader:
    """Something like a DataLoader."""

    batch_size = 32

    def __init__(self, batches: Iterable[int]) -> None:
        self._batches = list(batches)

    def __iter__(self) -> Iterator[int]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def test_a_wrapped_loader_is_used_as_before_epoch_after_epoch() -> None:
    loader = hook.watch(Loader([1, 2, 3]))
    assert [list(loader), list(loader)] == [[1, 2, 3], [1, 2, 3]]
    assert len(loader) == 3
    assert loader.batch_size == 32
    assert bool(loader)
    assert not hook.watch(Loader([]))
    with pytest.raises(AttributeError, match="no_such"):
        loader.no_such  # type: ignore[attr-defined]  # noqa: B018


def test_a_wrapped_loader_without_a_length_is_still_true_and_listable() -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    loader = hook.watch(Endless())
    assert bool(loader)
    assert list(loader) == [1, 2]


def test_an_iterator_stays_one_and_generators_are_not_read_ahead() -> None:
    drawn = []

    def source() -> Iterator[int]:
        for number in range(3):
            drawn.append(number)
            yield number

    batches = hook.watch(source())
    assert drawn == []
    assert next(batches) == 0
    assert drawn == [0]


def test_the_loaders_own_error_reaches_the_job_unchanged() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError(5, "Input/output error", "/data/shard-7")

    with pytest.raises(OSError, match="shard-7"):
        list(hook.watch(source()))


def test_a_wrapped_loader_can_be_pickled_to_a_spawned_rank() -> None:
    import pickle

    assert list(pickle.loads(pickle.dumps(hook.watch(Loader([1, 2]))))) == [1, 2]


# ------------------------------------------------------------------ where it runs


def test_it_reads_as_python_3_9_and_imports_the_standard_library_only() -> None:
    tree = ast.parse(HOOK.read_text(encoding="utf-8"), feature_version=(3, 9))
    tops = {n.names[0].name for n in tree.body if isinstance(n, ast.Import)}
    assert tops == {"atexit", "itertools", "os", "threading", "time"}
    annotations = [n for n in tree.body if isinstance(n, ast.ImportFrom)]
    assert [n.module for n in annotations] == ["__future__"], "X | Y in an annotation is evaluated without it"


def test_the_file_alone_in_a_folder_of_a_job_works(tmp_path: Path) -> None:
    shutil.copy(HOOK, tmp_path / "gpuwatch_hook.py")
    code = (
        "import sys, gpuwatch_hook\n"
        "assert [b for b in gpuwatch_hook.watch([1, 2])] == [1, 2]\ngpuwatch_hook.step(); gpuwatch_hook.step()\n"
        "print(*sorted(m for m in sys.modules if m.startswith(('gpuwatch.', 'msgspec', 'zmq', 'torch'))))"
    )
    env = {"GPUWATCH_ENDPOINT": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("env", "directories"),
    [
        ({}, ("/run/gpuwatch",)),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, ("/run/user/7/gpuwatch", "/run/gpuwatch")),
        ({"GPUWATCH_ENDPOINT": "ipc:///srv/gw", "XDG_RUNTIME_DIR": "/run/user/7"}, ("/srv/gw",)),
        ({"GPUWATCH_ENDPOINT": "/srv/gw"}, ("/srv/gw",)),
        ({"GPUWATCH_ENDPOINT": "ssh://node7"}, ()),
    ],
)
def test_it_looks_where_the_clients_of_the_daemon_look(env: dict[str, str], directories: tuple[str, ...]) -> None:
    assert hook.directories(env) == directories


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Short enough for a socket."""
    assert len(str(tmp_path)) < 80
    return tmp_path


def receiver(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bound.setblocking(False)
    bound.bind(str(path))
    return bound


def test_every_receiver_is_told_and_one_that_has_gone_is_forgotten(folder: Path) -> None:
    sender = hook._Sender((str(folder),))
    with receiver(folder / "steps.sock") as daemon:
        with receiver(folder / "steps.42") as diagnose, receiver(folder / "requests.sock") as other:
            assert sender.send(b"1", 0)
            assert (daemon.recv(9), diagnose.recv(9)) == (b"1", b"1")
            with pytest.raises(BlockingIOError):
                other.recv(9)
        assert sender.send(b"2", 1)
        assert sender._receivers == (str(folder / "steps.sock"),)
        assert daemon.recv(9) == b"2"
    sender.close()


def test_a_daemon_that_comes_later_is_found_and_a_new_one_in_its_place_too(folder: Path) -> None:
    sender = hook._Sender((str(folder),))
    path = folder / "steps.sock"
    assert sender.send(b"lost", 0)
    with receiver(path) as first:
        assert sender.send(b"not yet", 1)
        assert sender.send(b"first", hook.LOOK_EVERY_NS)
        assert first.recv(9) == b"first"
    path.unlink()
    with receiver(path) as second:
        sender.send(b"found by its path", hook.LOOK_EVERY_NS + 1)
        assert second.recv(99) == b"found by its path"
    sender.close()


def test_a_full_queue_is_not_waited_for(folder: Path) -> None:
    sender = hook._Sender((str(folder),))
    with receiver(folder / "steps.sock"):
        sent = 0
        while sender.send(b"x" * 200, 0):
            sent += 1
            assert sent < 100_000, "it never said that there is no room"
    sender.close()


def test_a_forked_worker_does_not_go_on_with_its_parents_steps(folder: Path) -> None:
    code = (
        "import os, gpuwatch.hook as h\nh.step(); h._sender.send(b'parent', 0)\n"
        "parent = h._sender, h._marks.loop\n"
        "if os.fork() == 0:\n"
        "    assert not hasattr(h._marks, 'loop') and h._sender is not parent[0] and parent[0]._socket is None\n"
        "    h._sender.send(b'child', 0)\n    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "assert (h._sender, h._marks.loop) == parent\nh._sender.send(b'parent', 1)"
    )
    with receiver(folder / "steps.sock") as daemon:
        env = {**os.environ, "GPUWATCH_ENDPOINT": str(folder)}
        subprocess.run([sys.executable, "-W", "error", "-c", code], env=env, check=True, timeout=30)
        assert [daemon.recv(9) for _ in range(3)] == [b"parent", b"child", b"parent"]


def test_threads_have_steps_of_their_own() -> None:
    found: list[object] = []

    def work() -> None:
        hook.step()
        found.append(hook._marks.loop)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is not found[1]


def test_an_interpreter_that_ends_in_the_middle_of_a_step_ends_silently(folder: Path) -> None:
    code = "import gpuwatch.hook as h\nb = iter(h.watch([1, 2, 3]))\nnext(b); next(b)\nh.step(); h.step()"
    with receiver(folder / "steps.sock"):
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", code],
            env={**os.environ, "GPUWATCH_ENDPOINT": str(folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert (done.returncode, done.stderr) == (0, "")
