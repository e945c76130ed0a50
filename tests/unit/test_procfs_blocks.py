"""A process whose memory or whose user cannot be read now: the others are read, and it is when it can be."""

from __future__ import annotations

import os
import pwd
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_procfs import FakeProc

from gpuwatch.collect.procfs import ProcessReader
from gpuwatch.collect.py_spy import PySpy
from gpuwatch.collect.slow_calls import SlowCalls
from gpuwatch.collect.stacks import StackSampler
from gpuwatch.collect.user_names import UserNames
from gpuwatch.model import ProcessInfo

S = 1_000_000_000


class Node:
    """Jobs 10 and 20; reading the command line of 20 blocks until it is let go."""

    def __init__(self, root: Path, file: str = "cmdline") -> None:
        self.proc = FakeProc(root)
        self.proc.add(10, comm="first")
        self.proc.add(
            20, comm="second", argv="python second.py", environ="RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1"
        )
        self.file = root / "20" / file
        self.text = self.file.read_bytes()
        self.file.unlink()
        os.mkfifo(self.file)
        self.reader = ProcessReader(root)
        self.infos: dict[int, ProcessInfo] = {}
        self.ns = S

    def read(self) -> dict[int, ProcessInfo]:
        self.ns += S
        tick = self.reader.read({10: (0,), 20: (1,)}, self.ns)
        assert {sample.pid for sample in tick.samples} == {10, 20}
        self.infos |= {info.pid: info for info in tick.infos}
        return self.infos

    def let_go(self) -> None:
        self.file.write_bytes(self.text)


@pytest.fixture(params=["cmdline", "environ"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, request.param)
    yield node
    node.reader.close()


def reader_threads(name: str = "names") -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_a_process_that_holds_its_lock_is_shown_by_its_kernel_name_and_holds_up_no_other(node: Node) -> None:
    before = reader_threads()
    for _ in range(4):
        infos = node.read()
    assert (infos[10].command, infos[10].user) == ("python train.py", "root")
    assert (infos[20].command, infos[20].place) == ("[second]", None)
    assert reader_threads() - before <= 2, "what hangs is asked once"
    node.let_go()
    assert node.reader._known[20].asked is not None
    assert node.reader._known[20].asked.done.wait(10)
    infos = node.read()
    assert infos[20].command == "python second.py"
    assert infos[20].place is not None
    assert infos[20].python


def test_stacks_of_a_process_that_holds_its_lock_are_refused_and_taken_when_it_lets_go(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / "20/exe").unlink(missing_ok=True)
    sampler, before = StackSampler(spy := PySpy(tmp_path / "none", tmp_path)), reader_threads("py-spy")
    for _ in range(4):
        assert "lets nobody read its memory" in sampler.sample(20, 20).error
    assert reader_threads("py-spy") - before <= 1, "what hangs is asked once"
    node.let_go()
    (question,) = spy._asked.values()
    assert question.done.wait(10)
    assert "cannot be started" in sampler.sample(20, 20).error, "it is known as Python now"
    node.reader.close()


def test_a_process_with_pythons_own_name_is_sampled_whatever_its_memory_does(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / "20/exe").unlink(missing_ok=True)
    (tmp_path / "20/exe").symlink_to("/usr/bin/python3.12")
    assert PySpy(tmp_path / "none", tmp_path).unfit(20) is None
    node.reader.close()


def test_a_user_service_that_does_not_answer_leaves_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = threading.Event(), []

    def look_up(uid: int) -> SimpleNamespace:
        asked.append(uid)
        answers.wait()
        return SimpleNamespace(pw_name="ada")

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    proc = FakeProc(tmp_path)
    proc.add(10)
    reader = ProcessReader(tmp_path)
    assert [info.user for info in reader.read({10: (0,)}, 1 * S).infos] == ["0"]
    assert [info.user for info in reader.read({10: (0,)}, 2 * S).infos] == []
    answers.set()
    assert reader._users._asked[0].done.wait(10)
    assert [info.user for info in reader.read({10: (0,)}, 3 * S).infos] == ["ada"]
    assert reader.read({10: (0,)}, 4 * S).infos == ()
    assert asked == [0]
    reader.close()


def test_one_tick_waits_for_all_that_hang_together_only_once() -> None:
    calls, release = SlowCalls("test", patience_s=0.05), threading.Event()
    began = time.monotonic()
    questions = [calls.ask(release.wait, False) for _ in range(100)]
    assert time.monotonic() - began < 100 * 0.05 / 2
    assert not any(question.done.is_set() for question in questions)
    assert sum(thread.name == "test" for thread in threading.enumerate()) == 16
    release.set()
    for question in questions:
        assert question.done.wait(10)
        assert question.value
    calls.close()


def test_what_answers_at_once_needs_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=f"user{uid}"))
    calls, users = SlowCalls("one"), UserNames()
    assert [calls.ask(lambda n=n: n * n, -1).value for n in range(50)] == [n * n for n in range(50)]  # type: ignore[misc]
    assert [users.name(uid) for uid in range(3)] == ["user0", "user1", "user2"]
    assert sum(thread.name == "one" for thread in threading.enumerate()) == 1
    with pytest.raises(ZeroDivisionError):
        calls.ask(lambda: 1 // 0, 0)
    calls.close()
    users.close()
