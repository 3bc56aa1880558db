"""The lane over Ray: payloads of every size, what becomes of Ray's errors, and what a call costs."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray
from ray.exceptions import ActorAlreadyExistsError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import rayka
from rayka.actors.names import NAMESPACE
from rayka.actors.node_actor import Broker, Controller
from rayka.actors.ray_network import (
    INLINE_MAX_BYTES,
    PIECE_BYTES,
    RayNetwork,
    pack_answer,
    pack_call,
    unpack_answer,
    unpack_call,
)
from rayka.client import io_thread
from rayka.cluster import Cluster
from rayka.errors import InvalidRequest, NetworkException, RequestTimedOut, UnknownServerError
from rayka.protocol.apis import APIS
from rayka.protocol.membership import HeartbeatRequest, MetadataRequest, StatusRequest
from rayka.protocol.wire import Encoded
from tests.ray.support import wait_until
from tests.rays import RayNodes

pytestmark = pytest.mark.ray


def call(network: RayNetwork, node_id: int, request: Any, timeout_ms: int = 10_000) -> Any:
    async def answered() -> Any:
        return await network.call(node_id, request, timeout_ms)

    return io_thread.run(answered, 60)


@pytest.mark.parametrize("actor", [Broker, Controller])
def test_an_actor_has_a_method_for_every_api(actor: type) -> None:
    assert [api.name for api in APIS if not asyncio.iscoroutinefunction(getattr(actor, api.name, None))] == []


@pytest.mark.parametrize(
    "size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, INLINE_MAX_BYTES, INLINE_MAX_BYTES + 1, 4 << 20]
)
def test_a_call_and_its_answer_arrive_as_they_were_sent(size: int) -> None:
    sent = np.arange(size, dtype=np.uint8)
    arguments = pack_call(b"header", Encoded(b"request", [sent]))
    header, request, records = unpack_call(arguments)
    assert (header, request, bytes(records)) == (b"header", b"request", sent.tobytes())
    body, records = unpack_answer(pack_answer((b"response", sent)))
    assert (body, bytes(records)) == (b"response", sent.tobytes())


def test_a_small_call_is_one_frame_with_aligned_records() -> None:
    for length in range(16):
        frame = pack_call(b"h" * length, Encoded(b"request", [np.arange(8, dtype=np.uint8)]))
        assert len(frame) == 1
        *_, records = unpack_call(frame)
        assert isinstance(records, np.ndarray)
        assert records.ctypes.data % 8 == 0


def test_a_middling_payload_travels_inside_the_call_and_a_large_one_as_it_is() -> None:
    middling, large = np.zeros(INLINE_MAX_BYTES, np.uint8), np.zeros(INLINE_MAX_BYTES + 1, np.uint8)
    _, *pieces = pack_call(b"", Encoded(b"", [middling]))
    assert [len(each) for each in pieces] == [PIECE_BYTES] * (INLINE_MAX_BYTES // PIECE_BYTES)
    assert pack_call(b"", Encoded(b"", [large]))[1] is large


@pytest.mark.parametrize(
    "arguments",
    [(), (b"",), (3,), (b"\xff\xff\xff\xff\x00\x00\x00\x00",), (bytes(8), 3, 4), (bytes(8), b"", [])],
)
def test_arguments_that_are_no_call_are_an_invalid_request(arguments: Any) -> None:
    with pytest.raises(InvalidRequest, match="expected"):
        unpack_call(arguments)


def test_a_failure_has_no_payload() -> None:
    assert unpack_answer(pack_answer((b"failure", None))) == (b"failure", None)


def test_an_api_that_the_node_does_not_serve_is_refused(cluster: Cluster) -> None:
    heartbeat = HeartbeatRequest(1, 0, 0, want_fence=False, want_shut_down=False)
    with pytest.raises(InvalidRequest, match="does not serve 'heartbeat'"):
        call(cluster.network(), 1, heartbeat)


def test_a_node_that_has_no_actor_is_a_network_exception(cluster: Cluster) -> None:
    with pytest.raises(NetworkException, match="shared/broker-99"):
        call(cluster.network(), 99, StatusRequest())


def test_a_call_that_takes_too_long_is_timed_out_and_the_next_one_is_served(cluster: Cluster) -> None:
    network = cluster.network()
    with pytest.raises(RequestTimedOut, match="broker-1 did not answer metadata within 200 ms"):
        call(network, 1, MetadataRequest(min_metadata_offset=10**9), timeout_ms=200)
    assert call(network, 1, StatusRequest()).node_id == 1


def test_the_nodes_of_a_cluster_are_found_by_its_name(cluster: Cluster) -> None:
    assert list(io_thread.run(cluster.network().node_ids, 10)) == [1, 3001]


def test_calls_sent_together_are_answered_together(cluster: Cluster) -> None:
    network = cluster.network()

    async def many() -> list[int]:
        answers = await asyncio.gather(*(network.call(1, StatusRequest(), 10_000) for _ in range(500)))
        return [answer.node_id for answer in answers]

    assert io_thread.run(many, 60) == [1] * 500


class _Answering:
    async def status(self, _: bytes) -> None:
        raise LookupError("answered")


def reaches(network: RayNetwork) -> bool:
    """Whether an `_Answering` actor answers as node 1."""
    try:
        call(network, 1, StatusRequest(), timeout_ms=2_000)
    except UnknownServerError as error:
        return "answered" in str(error)
    except (NetworkException, RequestTimedOut):
        return False
    raise AssertionError("an answer that nothing gave")


def test_an_actor_made_anew_after_its_ray_node_was_lost_is_found_again(rays: RayNodes) -> None:
    def is_made(ray_node_id: str) -> bool:
        """False while its name is taken, which Ray gives back a little after it lists it no more."""
        pinned = NodeAffinitySchedulingStrategy(ray_node_id, soft=False)
        options = ray.remote(_Answering).options(
            name="homeless/broker-1",
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=0.01,
            scheduling_strategy=pinned,
        )
        try:
            options.remote()
        except ActorAlreadyExistsError:
            return False
        return True

    lost, network = rays.add_node(num_cpus=1), RayNetwork("homeless")
    assert is_made(lost.node_id)
    wait_until(lambda: reaches(network))
    rays.remove_node(lost, allow_graceful=False)
    wait_until(lambda: not reaches(network))
    wait_until(lambda: is_made(ray.get_runtime_context().get_node_id()))
    wait_until(lambda: reaches(network))
    assert reaches(network), "the handle of the new actor is kept"
    ray.kill(ray.get_actor("homeless/broker-1", NAMESPACE))


class _AnsweringOnce:
    def __init__(self) -> None:
        self._has_answered = False

    async def status(self, _: bytes) -> None:
        if self._has_answered:
            await asyncio.Event().wait()
        self._has_answered = True
        raise LookupError("answered")


def test_after_a_call_that_took_too_long_the_actor_is_looked_up_anew(ray_address: str) -> None:
    """Else the next call would go to one that has ended, if nothing had told of its end."""

    def is_made(actor: type) -> bool:
        """False while its name is taken."""
        options = {"name": "replaced/broker-1", "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
        try:
            ray.remote(actor).options(**options).remote()
        except ActorAlreadyExistsError:
            return False
        return True

    network = RayNetwork("replaced", transport="ray")
    assert is_made(_AnsweringOnce)
    assert reaches(network)
    with pytest.raises(RequestTimedOut):
        call(network, 1, StatusRequest(), timeout_ms=200)
    ray.kill(ray.get_actor("replaced/broker-1", NAMESPACE))
    wait_until(lambda: is_made(_Answering))
    assert reaches(network)
    ray.kill(ray.get_actor("replaced/broker-1", NAMESPACE))


CONNECTED_TWICE = """
import os, sys, ray, rayka
topic = sys.argv[1]
admin = rayka.Admin(cluster="shared", default_api_timeout_ms=2_000)
producer = rayka.Producer(cluster="shared")
consumer = rayka.Consumer(topic, cluster="shared", auto_offset_reset="earliest")

def exchange(value):
    producer.send(topic, value).result(timeout=60)
    print([record.value for record in consumer.poll(60_000)], admin.list_topics().count(topic), flush=True)

exchange(b"first")
ray.shutdown()
for attempt in range(2):
    try:
        admin.list_topics()
    except rayka.errors.UnavailableError as error:
        print("no longer connected to Ray" in str(error), ray.is_initialized(), flush=True)
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
exchange(b"second")
"""


def test_clients_made_before_ray_shutdown_work_on_with_the_next_connection(
    cluster: Cluster, ray_address: str, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("connected-twice", partitions=1)
    done = run(sys.executable, "-c", CONNECTED_TWICE, "connected-twice", RAY_ADDRESS=ray_address)
    assert done.stdout.splitlines() == [
        "[b'first'] 1",
        "True False",
        "True False",
        "[b'second'] 1",
    ], done.stderr
