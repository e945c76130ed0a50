"""A daemon that a new process takes over from: to systemd and to its clients it has not stopped."""

from __future__ import annotations

import logging
import socket

import pytest
from daemon_parts import QUIET, ScriptedSource, newest, runtime_dir, until, verdict

from gpuwatch.client.connection import Connection
from gpuwatch.client.state import Link
from gpuwatch.daemon.restart import Restart
from gpuwatch.daemon.service import Service
from gpuwatch.daemon.systemd import Notifier


def test_systemd_hears_of_a_reload_and_clients_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpuwatch")
    wanted = [False]
    with runtime_dir() as path, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{path.parent}/notify")
        manager.setblocking(False)
        service = Service(
            *(ScriptedSource(), QUIET, verdict, None),
            directory=path,
            fold=newest,
            notifier=Notifier({"NOTIFY_SOCKET": f"{path.parent}/notify"}),
            restart=Restart(lambda: wanted[0], {}),
        )
        service.start()
        with Connection(str(path)) as client:

            def live() -> bool:
                service.step(0.01)
                return client.step(0.01).link is Link.LIVE

            until(client, lambda _: live())
            wanted[0] = True
            service.step(0.01)
            assert (service.stopping, service.replacing) == (True, True)
            service.stop()
            assert client.step(0.1).link is not Link.LOST
        said = b"".join(_all(manager)).decode()
    assert said.count("RELOADING=1") == 1
    assert "STOPPING" not in said
    assert [r.getMessage() for r in caplog.records].count(
        "the driver was upgraded underneath: starting again to load the library that fits it"
    ) == 1


def _all(manager: socket.socket) -> list[bytes]:
    heard: list[bytes] = []
    try:
        while True:
            heard.append(manager.recv(4096))
    except BlockingIOError:
        return heard
