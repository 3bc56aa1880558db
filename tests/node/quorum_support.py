"""What the tests of several controllers share: a cluster with short timeouts, and calls to one of its nodes."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import rayka.testing
from rayka.client import io_thread
from rayka.errors import NotController
from rayka.ports import Request
from rayka.protocol.membership import MetadataRequest, StatusRequest, StatusResponse
from rayka.protocol.topics import CreateTopicsRequest, NewTopic
from rayka.testing import InProcessCluster

CONTROLLERS = (3001, 3002, 3003)
QUICK = {
    "controller.quorum.election.timeout.ms": 100,
    "controller.quorum.fetch.timeout.ms": 200,
    "controller.quorum.request.timeout.ms": 200,
    "controller.quorum.election.backoff.max.ms": 50,
    "metadata.max.idle.interval.ms": 50,
}
ResultT = TypeVar("ResultT")


@contextmanager
def quorum(brokers: int = 1, *, controllers: int = 3, **config: Any) -> Iterator[InProcessCluster]:
    """A cluster that elects a controller within a few hundred milliseconds; `config` in snake_case."""
    named = {key.replace("_", "."): value for key, value in config.items()}
    with rayka.testing.cluster(brokers, controllers=controllers, config=QUICK | named) as cluster:
        yield cluster


def ask(
    cluster: InProcessCluster, node_id: int, request: Request[ResultT], timeout_ms: int = 5_000
) -> ResultT:
    """One call to one node; raises what it answers."""
    return io_thread.run(partial(cluster.network().call, node_id, request, timeout_ms), 20)


def status(cluster: InProcessCluster, node_id: int) -> StatusResponse:
    return ask(cluster, node_id, StatusRequest())


def create(cluster: InProcessCluster, name: str, node_id: int | None = None) -> None:
    """Asks that controller once; without one whichever is active, as clients do: on a busy machine another one may be
    by then.
    """
    if node_id is None:
        with rayka.Admin(cluster=cluster, retry_backoff_ms=5) as admin:
            admin.create_topic(name, partitions=1, replication_factor=1)
        return
    (result,) = ask(cluster, node_id, CreateTopicsRequest((NewTopic(name, 1, 1),))).topics
    assert not result.error_code, result


def topics(cluster: InProcessCluster) -> list[str]:
    """As the active controller knows them."""
    while True:
        with suppress(NotController):  # as above
            response = ask(cluster, cluster.await_active_controller(), MetadataRequest())
            return sorted(topic.name for topic in response.topics)


def others(node_id: int) -> tuple[int, int]:
    """The two other controllers."""
    first, second = (each for each in CONTROLLERS if each != node_id)
    return first, second


def isolate(cluster: InProcessCluster, node_id: int) -> None:
    """Nothing passes between this controller and the other two."""
    for each in others(node_id):
        cluster.partition(node_id, each)
