"""Parsers of /proc/PID files and the roles judged from names: recorded text, hostile names, old kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwatch.collect.proc_parse import (
    PidIo,
    parse_cmdline,
    parse_hidepid,
    parse_io,
    parse_schedstat,
    parse_stat,
    parse_state,
    parse_status,
)
from gpuwatch.collect.roles import Names, child_role, is_launcher, looks_python
from gpuwatch.model import Role

FIXTURES = Path(__file__).parent / "procfixtures"


def fixture(name: str) -> bytes:
    return (FIXTURES / f"{name}.txt").read_bytes()


@pytest.mark.parametrize("comm", [b"python (x) y)", b"a b", b"", b")", b"((", b"x) R 1 2 3"])
def test_a_process_that_names_itself_with_brackets_cannot_shift_the_fields(comm: bytes) -> None:
    tail = fixture("main_stat").split(b")", 1)[1]
    stat = parse_stat(b"967 (" + comm + b")" + tail)
    assert (stat.comm, stat.state, stat.ppid, stat.start_ticks) == (comm.decode(), "S", 429, 11290)
    assert parse_state(b"967 (" + comm + b")" + tail) == "S"


def test_control_characters_and_broken_utf8_in_a_name_never_reach_the_terminal() -> None:
    tail = fixture("main_stat").split(b")", 1)[1]
    assert parse_stat(b"1 (a\nb\x1b[2J\xff)" + tail).comm == "a?b?[2J�"
    assert parse_cmdline(b"python\0-c\0print('\x1b[31m\n')\0\xff\0") == ("python", "-c", "print('?[31m?')", "�")


def test_an_empty_command_line_is_a_kernel_thread_and_an_empty_argument_is_kept() -> None:
    assert parse_cmdline(b"") == ()
    assert parse_cmdline(b"a\0\0b\0") == ("a", "", "b")


def test_recorded_files_of_a_torch_job_are_read() -> None:
    stat, worker = parse_stat(fixture("main_stat")), parse_stat(fixture("worker_stat"))
    assert (stat.utime_ticks, stat.stime_ticks, stat.num_threads, stat.majflt) == (1314, 98, 6, 2)
    assert stat.rss_pages == 369827
    assert (worker.comm, worker.state, worker.ppid) == ("pt_data_worker", "R", stat.pid)
    status = parse_status(fixture("main_status"))
    assert (status.uid, status.nspid) == (0, (967,))
    assert parse_schedstat(fixture("main_schedstat")) == (11873954539, 3311419)
    assert parse_io(fixture("main_io")) == PidIo(44898925, 5117, 8798208, 57344)


def test_nested_pid_namespaces_are_listed_and_old_kernels_have_none() -> None:
    text = fixture("main_status")
    assert parse_status(text.replace(b"NSpid:\t967", b"NSpid:\t967\t12\t1")).nspid == (967, 12, 1)
    assert parse_status(text.replace(b"NSpid:\t967\n", b"")).nspid == ()


def test_the_user_is_known_where_a_kernel_leaves_other_lines_out() -> None:
    """gVisor has no context switches in it."""
    assert parse_status(b"Name:\tpython\nUid:\t1000\t1000\t1000\t1000\n") == (1000, (), "")


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ("22 27 0:21 / /proc rw,relatime - proc proc rw", ()),
        ("22 27 0:21 / /proc rw,relatime - proc proc rw,hidepid=2", ("hidepid=2",)),
        ("22 27 0:21 / /proc rw - proc proc rw,gid=20,hidepid=invisible", ("hidepid=invisible", "gid=20")),
        ("22 27 0:21 / /proc rw - proc proc rw,gid=20,hidepid=off", ()),
        ("22 27 0:21 / /chroot/proc rw - proc proc rw,hidepid=2", ()),
        ("22 27 0:21 / /proc rw - proc proc rw,hidepid=2\n29 22 0:9 / /proc rw - proc proc rw", ()),
        ("broken", ()),
    ],
)
def test_how_proc_hides_processes_is_read_from_its_mount(lines: str, options: tuple[str, ...]) -> None:
    assert parse_hidepid(f"27 1 254:0 / / rw - ext4 /dev/vda rw\n{lines}\n".encode()) == options


@pytest.mark.parametrize(
    ("parse", "data", "words"),
    [
        (parse_stat, b"", "stat: 0 fields"),
        (parse_stat, b"1 (x) R 1 2", "stat: 3 fields"),
        (parse_state, b"1 (x", "no state"),
        (parse_status, b"PPid:\t0\n", "no value for Uid"),
        (parse_status, b"\n", "status: no line"),
        (parse_io, b"rchar: 1\n", "no value for syscr"),
        (parse_schedstat, b"\n", "schedstat: 0 fields"),
    ],
)
def test_bad_text_is_a_clear_error(parse: Callable[[bytes], object], data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(data)


PYTHON = "/opt/env/bin/python3.12"
TRAIN = Names("python", PYTHON, ("python", "train.py"))


@pytest.mark.parametrize(
    ("names", "parent", "named", "role"),
    [
        (Names("pt_data_worker", PYTHON, TRAIN.argv), TRAIN, True, Role.LOADER_WORKER),
        (TRAIN, TRAIN, False, Role.LOADER_WORKER),
        # A Manager is forked too: where torch names its workers, it is none of them.
        (TRAIN, TRAIN, True, Role.CHILD),
        (
            Names(
                "python",
                PYTHON,
                ("python", "-B", "-Wignore", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"),
            ),
            TRAIN,
            False,
            Role.LOADER_WORKER,
        ),
        (
            Names("python", PYTHON, ("python", "-c", "from multiprocessing.resource_tracker import main;main(5)")),
            TRAIN,
            False,
            Role.CHILD,
        ),
        (
            Names("python", PYTHON, ("python", "-c", "from multiprocessing.forkserver import main; main()")),
            TRAIN,
            False,
            Role.CHILD,
        ),
        (Names("ptxas", "/usr/bin/ptxas", ("ptxas", "x.ptx")), TRAIN, False, Role.CHILD),
        (Names("python", PYTHON, ("python", "other.py")), TRAIN, False, Role.CHILD),
        (Names("python", PYTHON, ()), Names("python", PYTHON, ()), False, Role.CHILD),
    ],
)
def test_loader_workers_are_told_from_other_children(names: Names, parent: Names, named: bool, role: Role) -> None:
    assert child_role(names, parent, named) is role


@pytest.mark.parametrize(
    ("names", "python"),
    [
        (Names("ray::Train", "/usr/bin/python3.11", ("ray::Train",)), True),
        (Names("python3", "/usr/bin/python3 (deleted)", ("x",)), True),
        (Names("x", "/usr/bin/python3.13t", ()), True),
        (Names("python-config", "/usr/bin/python-config.sh", ()), False),
        (Names("bash", "/bin/bash", ("python",)), False),
        (Names("a", "", ("/env/bin/python3", "train.py")), True),
        (Names("pt_data_worker", "", ()), True),
        (Names("a.out", "", ("./a.out",)), False),
    ],
)
def test_only_python_is_offered_to_the_stack_sampler(names: Names, python: bool) -> None:
    assert looks_python(names) is python


def test_launchers_are_known_by_name_or_module() -> None:
    assert is_launcher(Names("torchrun", "", ("/env/bin/python", "/env/bin/torchrun", "train.py")))
    assert is_launcher(Names("python", "", ("python", "-m", "torch.distributed.run", "train.py")))
    assert is_launcher(Names("slurmstepd", "", ("slurmstepd: [42.0]",)))
    assert not is_launcher(Names("bash", "", ("bash",)))
