"""The lane over Ray: payloads of every size, what becomes of Ray's errors, and what a call costs."""

import asyncio
import statistics
import time
from typing import Any

import numpy as np
import pytest
import ray

from rayka.actors.broker import Broker
from rayka.actors.controller import Controller
from rayka.actors.network import RayNetwork
from rayka.actors.payload import (
    INLINE_MAX_BYTES,
    PIECE_BYTES,
    pack_answer,
    pack_call,
    unpack_answer,
    unpack_call,
)
from rayka.client import io_thread
from rayka.cluster import Cluster
from rayka.errors import InvalidRequest, NetworkException, RequestTimedOut
from rayka.protocol.apis import APIS
from rayka.protocol.cluster import HeartbeatRequest, MetadataRequest, StatusRequest
from rayka.protocol.wire import Encoded

pytestmark = pytest.mark.ray


def call(network: RayNetwork, node_id: int, request: Any, timeout_ms: int = 10_000) -> Any:
    return io_thread.run(network.call(node_id, request, timeout_ms), 60)


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


def test_what_is_small_is_one_frame_whose_records_are_aligned() -> None:
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
    assert list(io_thread.run(cluster.network().node_ids(), 10)) == [1, 3001]


def test_calls_sent_together_are_answered_together(cluster: Cluster) -> None:
    network = cluster.network()

    async def many() -> list[int]:
        answers = await asyncio.gather(*(network.call(1, StatusRequest(), 10_000) for _ in range(500)))
        return [answer.node_id for answer in answers]

    assert io_thread.run(many(), 60) == [1] * 500


def test_a_call_costs_little_more_than_a_call_to_an_actor_that_does_nothing(cluster: Cluster) -> None:
    """The bar is wide: a shared machine is noisy. Measured: 1.1 of a no-op's round trip."""
    network = cluster.network()
    idle = ray.remote(_Idle).options(num_cpus=0.01).remote()

    async def measure() -> float:
        own, bare = [], []
        for _ in range(150):
            began = time.perf_counter()
            await network.call(1, StatusRequest(), 10_000)
            between = time.perf_counter()
            await idle.nothing.remote(b"x" * 60)
            own.append(between - began)
            bare.append(time.perf_counter() - between)
        return statistics.median(own) / statistics.median(bare)

    assert io_thread.run(measure(), 60) < 2.5
    ray.kill(idle)


class _Idle:
    async def nothing(self, _: bytes) -> None: ...
