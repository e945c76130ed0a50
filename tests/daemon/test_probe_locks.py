"""The lock of a GPU lies where everybody may write: it works for all users, and nobody's trick makes it do harm."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.daemon import probe_locks

NAME = "gpuwatch-probe-GPU-11.lock"
NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As /run/lock is: everybody may write, and only the owner may remove."""
    folder = tmp_path / "lock"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_that_an_older_version_closed_to_others_is_opened_by_its_owner(folder: Path) -> None:
    (folder / NAME).touch(mode=0o600)
    os.close(probe_locks.lock_gpu("GPU-11", folder))
    assert mode(folder / NAME) == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(("first", "second"), [(0, NOBODY), (NOBODY, 0)], ids=["root-first", "user-first"])
def test_two_users_meet_at_one_lock_whatever_their_umask(folder: Path, first: int, second: int) -> None:
    for parent in (folder, *folder.parents):
        parent.chmod(mode(parent) | 0o011)
    code = (
        "import os, sys; from pathlib import Path; from gpuwatch.daemon.probe_locks import lock_gpu\n"
        "os.setuid(int(sys.argv[2])); os.umask(0o077)\n"
        "print(lock_gpu('GPU-11', Path(sys.argv[1])), flush=True); sys.stdin.read()"
    )

    def start(user: int) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", code, str(folder), str(user)]
        return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with start(first) as holds:
        assert holds.stdin is not None
        assert holds.stdout is not None
        assert int(holds.stdout.readline()) >= 0
        with start(second) as waits:
            out, _ = waits.communicate("")
        assert int(out) == -1, "it is told that the GPU is taken"
        holds.stdin.close()


def test_a_link_is_not_followed_also_where_it_leads_nowhere(folder: Path, tmp_path: Path) -> None:
    (folder / NAME).symlink_to(tmp_path / "made")
    with pytest.raises(OSError, match="symbolic links"):
        probe_locks.lock_gpu("GPU-11", folder)
    assert not (tmp_path / "made").exists()


def test_a_second_name_of_a_secret_file_does_not_open_it_to_others(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    os.link(secret, folder / NAME)
    os.close(probe_locks.lock_gpu("GPU-11", folder))
    assert mode(secret) == 0o600


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_named_and_not_waited_for(folder: Path, kind: str) -> None:
    os.mkfifo(folder / NAME) if kind == "pipe" else (folder / NAME).mkdir()
    with pytest.raises(OSError, match="not a regular file: remove it") as caught:
        probe_locks.lock_gpu("GPU-11", folder)
    assert caught.value.filename == str(folder / NAME)
