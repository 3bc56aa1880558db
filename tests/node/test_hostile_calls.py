"""Malformed calls, to any API of a node of any kind, are answered with an error, and the node goes on serving. The
nodes are real, on virtual time and memory disks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from random import Random
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayka.config.broker_config import BrokerConfig
from rayka.errors import ErrorCode
from rayka.ids import METADATA_TOPIC_ID
from rayka.node.broker_node import BrokerNode
from rayka.node.combined_node import CombinedNode, controller_settings
from rayka.node.controller_node import ControllerNode
from rayka.node.data_directories import DataDirectories
from rayka.node.inbox import Inbox
from rayka.node.quorum_directory import format_first_voters
from rayka.node.settings import NodeSettings
from rayka.ports import Message, Request
from rayka.protocol.apis import API_BY_NAME, APIS
from rayka.protocol.caller import Answer
from rayka.protocol.membership import (
    MetadataRequest,
    MetadataResponse,
    NodeState,
    StatusRequest,
    StatusResponse,
)
from rayka.protocol.topics import CreateTopicsRequest, NewTopic
from rayka.protocol.wire import CallNumber, Failure, RequestHeader, decode, encode
from rayka.sim.loop import VirtualLoop
from rayka.testing import MemoryDisk
from rayka.testing.in_process_network import Switch
from tests.node.broker_support import records
from tests.node.controller_support import Crashes

CALLS_PER_RUN = 15
PATIENCE_US = 120_000_000
NESTED = b"\x91" * 2_000 + b"\xc0"
BATCH = records(b"one", b"two")
_HOSTILE = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Kind(Enum):
    BROKER = 1
    CONTROLLER = 3001
    COMBINED = 2


SERVED = [
    (kind, api.name)
    for kind, node in (
        (Kind.BROKER, BrokerNode),
        (Kind.CONTROLLER, ControllerNode),
        (Kind.COMBINED, CombinedNode),
    )
    for api in APIS
    if api.served_by & node.serves
]


class Nodes:
    """A broker and a controller, or one node that is both, with a topic; and a caller of one of them."""

    def __init__(self, kind: Kind) -> None:
        self.loop = VirtualLoop()
        self.crashes = Crashes()
        self.node_id = kind.value
        ids = (2,) if kind is Kind.COMBINED else (1, 3001)
        self._switch = Switch(ids, Random(1))
        self._disk = MemoryDisk()
        self._call_count = 0
        self._inboxes: dict[int, Inbox] = {}
        self._run(self._start({each: self._settings(each) for each in ids}))
        created = self.ask(CreateTopicsRequest((NewTopic("orders", 2, 1),)), max(ids))
        self.ask(MetadataRequest(min_metadata_offset=created.metadata_offset), min(ids))

    def _settings(self, node_id: int) -> NodeSettings:
        return NodeSettings(
            node_id=node_id,
            cluster_name="test",
            data_dirs=(f"/data/{node_id}",),
            config=BrokerConfig(),
            disk=self._disk,
            network=self._switch.network(node_id),
            random=Random(node_id),
            wall_clock_ms=lambda: 1_700_000_000_000,
            crash=self.crashes,
        )

    async def _start(self, nodes: dict[int, NodeSettings]) -> None:
        is_combined = len(nodes) == 1
        first, last = nodes[min(nodes)], nodes[max(nodes)]
        await format_first_voters([controller_settings(last) if is_combined else last])
        await DataDirectories.format(first)
        started = [CombinedNode(last)] if is_combined else [ControllerNode(last), BrokerNode(first)]
        for node in started:
            inbox = self._inboxes[node.settings.node_id] = Inbox(node)
            self._switch.attach(node.settings.node_id, inbox)
            await node.start()

    def _run(self, coroutine: Any) -> Any:
        task = self.loop.create_task(coroutine)
        self.loop.run_until(self.loop.now_us + PATIENCE_US, task.done)
        return task.result()

    def ask(self, request: Request[Any], node_id: int | None = None) -> Any:
        return self._run(self._switch.network().call(node_id or self.node_id, request, 10_000))

    def close(self) -> None:
        self.loop.cancel_all()
        self.loop.close()

    def header(self) -> bytes:
        self._call_count += 1
        call = CallNumber(UUID(int=self._call_count), 0, 0)
        return encode(RequestHeader(call=call, timeout_ms=1_000)).body

    def send(self, api_name: str, header: bytes, body: bytes, payload: Any = b"") -> Answer | None:
        """The answer; None of a request that waits, as it may ask to."""
        task = self.loop.create_task(self._inboxes[self.node_id].handle(api_name, header, body, payload))
        self.loop.run_until(self.loop.now_us + 2_000, task.done)
        if not task.done():
            task.cancel()
            self.loop.run_until(self.loop.now_us + 2_000, task.done)
            return None
        answer: Answer = task.result()
        return answer

    def check_serves(self) -> None:
        status: StatusResponse = self.ask(StatusRequest())
        assert self.crashes.errors == []
        assert status.state is NodeState.RUNNING, status


@contextmanager
def nodes_of(kind: Kind) -> Iterator[Nodes]:
    nodes = Nodes(kind)
    try:
        yield nodes
    finally:
        nodes.close()


def error_of(answer: Answer | None) -> ErrorCode | None:
    """What a call was refused with as a whole, None where it was answered."""
    if answer is None or answer[1] is not None:
        return None
    return decode(Failure, answer[0]).error_code


# ---- Requests that may be ----

_FAR_INTEGERS = (-(2**63), -(2**31), -2, 2**15, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1)
_TEXTS = (
    "..", "a/b", "\0", "größe", "x" * 300, "1", "retention.ms", "min.insync.replicas", "localhost",
)  # fmt: skip


class Values:
    """What requests may hold, in MessagePack's terms; much of it means something to the nodes."""

    def __init__(self, nodes: Nodes) -> None:
        known: MetadataResponse = nodes.ask(MetadataRequest(("orders",)))
        broker = known.brokers[0]
        integers = (-1, 0, 1, 2, 3001, nodes.node_id, broker.node_id, broker.broker_epoch, BATCH.size)
        topic_ids = (known.topics[0].topic_id, METADATA_TOPIC_ID, UUID(int=0), UUID(int=2**128 - 1))
        directory_ids = [each.directory_id for each in broker.directories]
        numbers = st.one_of(
            st.sampled_from(integers), st.sampled_from(integers), st.sampled_from(_FAR_INTEGERS)
        )
        texts = _one_of_many(
            (st.sampled_from(("", "orders", known.cluster_id)), st.sampled_from(_TEXTS)), (0, 0, 0, 0, 1)
        )
        self._scalars: dict[type[msgspec.inspect.Type], st.SearchStrategy[Any]] = {
            msgspec.inspect.IntType: numbers,
            msgspec.inspect.StrType: texts,
            msgspec.inspect.UUIDType: st.sampled_from([str(each) for each in (*topic_ids, *directory_ids)]),
            msgspec.inspect.BoolType: st.booleans(),
            msgspec.inspect.NoneType: st.none(),
            msgspec.inspect.BytesType: st.binary(max_size=20),
            msgspec.inspect.CustomType: st.sampled_from((BATCH.size, BATCH.size, 0, 8, 64)),  # of the payload
        }

    def of(self, kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
        """Values of a type."""
        match kind:
            case msgspec.inspect.StructType(fields=fields):
                return st.tuples(*(self.of(each.type) for each in fields)).map(list)
            case msgspec.inspect.EnumType(cls=cls):
                return st.sampled_from([each.value for each in cls])
            case msgspec.inspect.UnionType(types=types):
                return st.one_of(*map(self.of, types))
            case msgspec.inspect.VarTupleType(item_type=item):
                return st.lists(self.of(item), max_size=3)
            case msgspec.inspect.TupleType(item_types=items):
                return st.tuples(*map(self.of, items)).map(list)
            case msgspec.inspect.DictType(key_type=key, value_type=value):
                return st.dictionaries(self.of(key), self.of(value), max_size=3)
        return self._scalars[type(kind)]

    def messages(self, message_type: type[Message]) -> st.SearchStrategy[bytes]:
        """Those that decode, most of them, and some that were damaged."""
        whole = self.of(msgspec.inspect.type_info(message_type)).map(msgspec.msgpack.encode)
        damaged = st.builds(lambda body, damage: damage(body), whole, _DAMAGE)
        return _one_of_many((whole, damaged, _GARBAGE), (0, 0, 0, 0, 0, 0, 1, 1, 2))


def _one_of_many(
    choices: tuple[st.SearchStrategy[Any], ...], shares: tuple[int, ...]
) -> st.SearchStrategy[Any]:
    """As `one_of`, which gives each strategy one share however often it is named."""
    return st.sampled_from(shares).flatmap(lambda place: choices[place])


def _spliced(place: float, piece: bytes, is_inserted: bool) -> Callable[[bytes], bytes]:
    def damage(body: bytes) -> bytes:
        at = int(place * len(body))
        return body[:at] + piece + body[at + (0 if is_inserted else len(piece)) :]

    return damage


_PIECES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from(
        (NESTED, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc1")
    ),
)
_DAMAGE = st.builds(_spliced, st.floats(0, 1), _PIECES, st.booleans())
_GARBAGE = st.one_of(st.binary(max_size=40), st.just(NESTED), st.just(b"\x9f" + NESTED))
_PAYLOADS = st.sampled_from(
    (
        BATCH,
        BATCH,
        BATCH,
        b"",
        b"short",
        [BATCH],
        [BATCH, BATCH],
        BATCH[:-3],
        None,
        3,
        [b"short"],
        np.zeros(8),
    )
)


@pytest.mark.parametrize(("kind", "api_name"), SERVED, ids=lambda each: getattr(each, "name", each))
@given(data=st.data())
@_HOSTILE
def test_no_request_ends_a_node(kind: Kind, api_name: str, data: st.DataObject) -> None:
    with nodes_of(kind) as nodes:
        bodies = Values(nodes).messages(API_BY_NAME[api_name].request_type)
        for body, payload in data.draw(st.lists(st.tuples(bodies, _PAYLOADS), max_size=CALLS_PER_RUN)):
            answer = nodes.send(api_name, nodes.header(), body, payload)
            assert error_of(answer) is not ErrorCode.UNKNOWN_SERVER_ERROR, body
            if answer is not None and answer[1] is not None:
                decode(API_BY_NAME[api_name].response_type, *answer)
        nodes.check_serves()


@pytest.mark.parametrize("kind", list(Kind))
@given(data=st.data())
@_HOSTILE
def test_no_header_ends_a_node(kind: Kind, data: st.DataObject) -> None:
    with nodes_of(kind) as nodes:
        for header in data.draw(st.lists(Values(nodes).messages(RequestHeader), max_size=CALLS_PER_RUN)):
            answer = nodes.send("metadata", header, msgspec.msgpack.encode([["orders"]]))
            assert error_of(answer) is not ErrorCode.UNKNOWN_SERVER_ERROR, header
        nodes.check_serves()


@pytest.mark.parametrize(("kind", "api_name"), SERVED, ids=lambda each: getattr(each, "name", each))
def test_arrays_in_arrays_are_an_invalid_request(kind: Kind, api_name: str) -> None:
    with nodes_of(kind) as nodes:
        field_count = len(msgspec.inspect.type_info(API_BY_NAME[api_name].request_type).fields)  # type: ignore[attr-defined]
        for body in (NESTED, bytes([0x91 + field_count]) + b"\xc0" * field_count + NESTED):
            answer = nodes.send(api_name, nodes.header(), body)
            assert error_of(answer) is ErrorCode.INVALID_REQUEST
        assert error_of(nodes.send(api_name, NESTED, b"")) is ErrorCode.INVALID_REQUEST
        nodes.check_serves()


@pytest.mark.parametrize("payload", [None, 3, [b"short"], np.zeros(8), BATCH.reshape(2, -1)], ids=repr)
def test_records_that_are_no_bytes_are_an_invalid_request(payload: Any) -> None:
    with nodes_of(Kind.BROKER) as nodes:
        body = msgspec.msgpack.encode([1, 1_000, [[str(UUID(int=0)), 0, BATCH.size]]])
        assert error_of(nodes.send("produce", nodes.header(), body, payload)) is ErrorCode.INVALID_REQUEST
        assert error_of(nodes.send("produce", nodes.header(), body, BATCH)) is None
        nodes.check_serves()
