"""Messages on the wire: what goes in comes out, arrays beside the structure, and hostile bytes are an error."""

from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.errors import ErrorCode, InvalidRequest, NotLeaderOrFollower, UnknownTopicOrPartition
from rayka.ids import ZERO_ID
from rayka.ports import Message
from rayka.protocol.apis import API_BY_NAME, APIS, api_of
from rayka.protocol.fetch import FetchPartitionResult, FetchResponse
from rayka.protocol.produce import ProducePartition, ProduceRequest
from rayka.protocol.wire import CallNumber, Encoded, Failure, RequestHeader, decode, encode

_LEAVES = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=8),
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    UUID: st.uuids(),
    np.ndarray: st.binary(max_size=40).map(lambda data: np.frombuffer(data, dtype=np.uint8)),
}
MESSAGES = [
    Failure,
    RequestHeader,
    *(each.request_type for each in APIS),
    *(each.response_type for each in APIS),
]


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """All values of one type of the protocol."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _LEAVES:
        return _LEAVES[annotation]
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if origin in (Union, UnionType):
        return st.one_of(*(st.none() if each is NoneType else values_of(each) for each in arguments))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return st.sampled_from(annotation)
    assert issubclass(annotation, msgspec.Struct), annotation
    fields = get_type_hints(annotation)
    return st.builds(annotation, **{name: values_of(fields[name]) for name in annotation.__struct_fields__})


def sent(message: Message) -> Message:
    """What the other side gets."""
    body, buffers = encode(message)
    return decode(type(message), body, Encoded(body, buffers).payload())


def wire_form(message: Message) -> tuple[bytes, bytes]:
    encoded = encode(message)
    return encoded.body, encoded.payload().tobytes()


@pytest.mark.parametrize("message_type", MESSAGES, ids=lambda each: each.__name__)
def test_every_message_survives_the_wire(message_type: type[Message]) -> None:
    @given(values_of(message_type))
    @settings(max_examples=25, deadline=None)
    def check(message: Message) -> None:
        assert wire_form(sent(message)) == wire_form(message)

    check()


def test_an_api_is_found_by_its_request_and_by_its_name() -> None:
    request = ProduceRequest(acks=1, timeout_ms=1, partitions=())
    assert api_of(request) is API_BY_NAME["produce"]


def test_large_arrays_cross_as_they_are() -> None:
    large = tuple(ProducePartition(ZERO_ID, each, np.full(400_000, each, np.uint8)) for each in range(3))
    encoded = encode(ProduceRequest(1, 1000, large))
    payload = encoded.payload()
    assert isinstance(payload, list)
    arrived = decode(ProduceRequest, encoded.body, payload)
    assert [each.records is part.records for each, part in zip(arrived.partitions, large, strict=True)] == [
        True
    ] * 3


@pytest.mark.parametrize("sizes", [(400_000, 399_992), (400_000,), ()])
def test_arrays_of_other_sizes_than_the_structure_says_are_refused(sizes: tuple[int, ...]) -> None:
    parts = tuple(ProducePartition(ZERO_ID, each, np.zeros(400_000, np.uint8)) for each in range(2))
    with pytest.raises(InvalidRequest, match="400000"):
        decode(
            ProduceRequest,
            encode(ProduceRequest(1, 1000, parts)).body,
            [np.zeros(each, np.uint8) for each in sizes],
        )


def test_arrays_arrive_in_order_as_views_of_the_payload() -> None:
    first, second = np.arange(8, dtype=np.uint8), np.arange(16, dtype=np.uint8)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1,
        partitions=(ProducePartition(ZERO_ID, 0, first), ProducePartition(ZERO_ID, 1, second)),
    )
    encoded = encode(request)
    payload = encoded.payload()
    arrived = decode(ProduceRequest, encoded.body, payload)
    assert [each.records.tolist() for each in arrived.partitions] == [first.tolist(), second.tolist()]
    assert all(np.shares_memory(each.records, payload) for each in arrived.partitions)


def test_many_small_arrays_cross_as_one() -> None:
    parts = [ProducePartition(ZERO_ID, each, np.full(1024, each % 256, np.uint8)) for each in range(1_000)]
    encoded = encode(ProduceRequest(1, 1000, tuple(parts)))
    payload = encoded.payload()
    assert isinstance(payload, np.ndarray)
    arrived = decode(ProduceRequest, encoded.body, payload)
    assert [each.records[0] for each in arrived.partitions] == [each % 256 for each in range(1_000)]


def test_one_array_is_not_copied_on_its_way_out() -> None:
    records = np.zeros(64, dtype=np.uint8)
    response = FetchResponse((FetchPartitionResult(ZERO_ID, 0, records=records),))
    assert np.shares_memory(encode(response).payload(), records)


def test_trailing_fields_of_a_newer_version_are_ignored() -> None:
    body = msgspec.msgpack.encode([0, "a message", 7, 8, False, "a field of tomorrow"])
    assert decode(Failure, body) == Failure(ErrorCode.NONE, "a message", 7, 8)


def test_missing_fields_of_an_older_version_have_their_defaults() -> None:
    assert decode(RequestHeader, msgspec.msgpack.encode([0])) == RequestHeader(call=CallNumber(ZERO_ID, 0, 0))


@pytest.mark.parametrize(
    ("body", "payload"),
    [
        (b"", b""),
        (b"\xc1", b""),
        (msgspec.msgpack.encode({"acks": 1}), b""),
        (msgspec.msgpack.encode(["all", 1, []]), b""),
        (msgspec.msgpack.encode([1, 1, [[str(ZERO_ID), 0, 9]]]), b"12345678"),
        (msgspec.msgpack.encode([1, 1, [[str(ZERO_ID), 0, -1]]]), b"12345678"),
        (msgspec.msgpack.encode([1, 1, [[str(ZERO_ID), 0, None]]]), b"12345678"),
        (msgspec.msgpack.encode([1, 1, [["no uuid", 0, 8]]]), b"12345678"),
    ],
)
def test_bytes_that_are_no_request_are_an_invalid_request(body: bytes, payload: bytes) -> None:
    with pytest.raises(InvalidRequest, match="expected a ProduceRequest"):
        decode(ProduceRequest, body, payload)


@pytest.mark.parametrize("size", [9, -1, None, True])
def test_a_message_without_a_payload_holds_no_records(size: object) -> None:
    with pytest.raises(
        InvalidRequest, match=r"expected .* bytes of records, found a message without a payload"
    ):
        decode(ProduceRequest, msgspec.msgpack.encode([1, 1, [[str(ZERO_ID), 0, size]]]))
    empty = decode(ProduceRequest, msgspec.msgpack.encode([1, 1, [[str(ZERO_ID), 0, 0]]]))
    assert empty.partitions[0].records.size == 0


@given(st.binary(max_size=60), st.binary(max_size=20))
@settings(max_examples=200, deadline=None)
def test_random_bytes_never_do_worse_than_an_invalid_request(body: bytes, payload: bytes) -> None:
    try:
        message = decode(ProduceRequest, body, payload)
    except InvalidRequest:
        return
    assert isinstance(message, ProduceRequest)


def test_a_failure_is_the_error_it_was_made_of() -> None:
    error = Failure.of(UnknownTopicOrPartition("no topic 'flights'")).error()
    assert isinstance(error, UnknownTopicOrPartition)
    assert str(error) == "no topic 'flights'"
    assert isinstance(Failure(ErrorCode.NOT_LEADER_OR_FOLLOWER).error(), NotLeaderOrFollower)
