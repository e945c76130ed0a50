"""Many hosts: the slow, the gone and the broken one cost the others nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpuwatch.client.feed import Asked
from gpuwatch.client.hosts import Hosts
from gpuwatch.client.state import Link, NodeState, connecting
from gpuwatch.errors import UnavailableError
from gpuwatch.wire import GetHistory


class Script:
    """A feed that says one thing; ``gate`` holds every step."""

    def __init__(self, said: NodeState | Exception, gate: threading.Event | None = None) -> None:
        self.said, self.gate = said, gate
        self.asked: list[Asked] = []
        self.closed = threading.Event()
        self._idle = threading.Event()

    def step(self, timeout_s: float) -> NodeState:
        if self.gate is not None:
            self.gate.wait()
        if isinstance(self.said, Exception):
            raise self.said
        self._idle.wait(0.01)
        return self.said

    def request(self, message: Asked, /) -> None:
        self.asked.append(message)

    def close(self) -> None:
        self.closed.set()


def live(name: str) -> NodeState:
    return NodeState(name, Link.LIVE)


def seen(hosts: Hosts, wanted: Callable[[tuple[NodeState, ...]], bool]) -> tuple[NodeState, ...]:
    for _ in range(400):
        states = hosts.step(0.05)
        if wanted(states):
            return states
    raise AssertionError(f"never came: {states}")


def test_a_host_that_hangs_holds_up_nobody_and_requests_find_their_host() -> None:
    gate = threading.Event()
    feeds = [Script(live("a")), Script(live("b"), gate), Script(live("c"))]
    hosts = Hosts([(f"h{i}", lambda feed=feed: feed) for i, feed in enumerate(feeds)])  # type: ignore[misc]
    hosts.start()
    states = seen(hosts, lambda s: [x.link for x in s] == [Link.LIVE, Link.CONNECTING, Link.LIVE])
    assert states[1] == connecting("h1")
    hosts.request(2, GetHistory(0, 0, 60))
    seen(hosts, lambda _: bool(feeds[2].asked))
    assert feeds[0].asked == []
    gate.set()
    seen(hosts, lambda s: s[1].link is Link.LIVE)
    hosts.close()
    assert all(feed.closed.is_set() for feed in feeds)


def test_one_of_several_that_ends_is_a_lost_host_with_its_reason() -> None:
    feeds = [Script(live("a")), Script(UnavailableError("b: no daemon there"))]
    hosts = Hosts([(f"h{i}", lambda feed=feed: feed) for i, feed in enumerate(feeds)])  # type: ignore[misc]
    hosts.start()
    states = seen(hosts, lambda s: s[1].link is Link.LOST)
    assert states[1].detail == "b: no daemon there"
    hosts.close()


def test_the_only_one_that_ends_is_the_end() -> None:
    hosts = Hosts([("a", lambda: Script(UnavailableError("it has gone")))])
    hosts.start()
    with pytest.raises(UnavailableError, match="it has gone"):
        seen(hosts, lambda _: False)
    hosts.close()


def test_a_bug_is_not_a_lost_host() -> None:
    hosts = Hosts([("a", lambda: Script(live("a"))), ("b", lambda: Script(RuntimeError("bug")))])
    hosts.start()
    with pytest.raises(RuntimeError, match="bug"):
        seen(hosts, lambda _: False)
    hosts.close()


def test_sixty_four_hosts_are_all_heard() -> None:
    hosts = Hosts([(f"h{i}", lambda i=i: Script(live(f"host{i}"))) for i in range(64)])  # type: ignore[misc]
    hosts.start()
    states = seen(hosts, lambda s: all(x.link is Link.LIVE for x in s))
    assert [state.endpoint for state in states] == [f"host{i}" for i in range(64)]
    hosts.close()
