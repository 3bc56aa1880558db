"""Ctrl-C in a call that waits for the only broker, which is dead."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

import rayka
import rayka.testing
from rayka import Admin, Consumer, TopicPartition
from rayka.testing import InProcessCluster
from tests.testing.interrupts import interrupted_after

_TP = TopicPartition("words", 0)
_QUICKLY = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}
_ENDLESS: dict[str, Any] = {"default_api_timeout_ms": 600_000}


class Clients(NamedTuple):
    cluster: InProcessCluster
    admin: Admin
    reader: Consumer
    member: Consumer


CALLS: dict[str, Callable[[Clients], object]] = {
    "Consumer.poll": lambda made: made.reader.poll(600_000),
    "Consumer.commit": lambda made: made.reader.commit({_TP: 1}),
    "Consumer.committed": lambda made: made.reader.committed([_TP]),
    "Consumer.position": lambda made: made.reader.position(_TP),
    "Consumer.end_offsets": lambda made: made.reader.end_offsets([_TP]),
    "Consumer.lag": lambda made: made.reader.lag(_TP),
    "Consumer.close of a member": lambda made: made.member.close(),
    "Admin.describe_group": lambda made: made.admin.describe_group("readers"),
    "read": lambda made: rayka.read("words", cluster=made.cluster, **_ENDLESS),
}


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Of a broker that is dead, and comes back when the test ends: only then the clients can be closed."""
    with rayka.testing.cluster(config=_QUICKLY) as cluster, ExitStack() as stack:
        made = Clients(
            cluster,
            stack.enter_context(Admin(cluster=cluster, **_ENDLESS)),
            stack.enter_context(Consumer(cluster=cluster, group_id="readers", **_ENDLESS)),
            stack.enter_context(Consumer(cluster=cluster, group_id="members", **_ENDLESS)),
        )
        made.admin.create_topic("words")
        made.reader.assign([_TP])
        made.member.subscribe("words")
        while not made.member.assignment():
            made.member.poll(1_000)
        cluster.kill(1)
        yield made
        cluster.restart(1)


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_ends_a_call_that_waits_for_a_dead_broker(clients: Clients, name: str) -> None:
    began_s = time.monotonic()
    with interrupted_after(0.3), pytest.raises(KeyboardInterrupt):
        CALLS[name](clients)
    assert time.monotonic() - began_s < 15  # of ten minutes, or of half of one for a close
