"""Serializers by name, callable and model."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgpack
import numpy as np
import pytest
from pydantic import BaseModel

from rayka.client.serializers import deserializer, serializer
from rayka.errors import ConfigError, SerializationError


class Flight(BaseModel):
    carrier: str
    delay: float | None = None


@pytest.mark.parametrize(
    ("given", "value", "data"),
    [
        ("string", "äöü", "äöü".encode()),
        ("json", {"a": [1, None, "ä"]}, '{"a":[1,null,"ä"]}'.encode()),
        ("msgpack", {"a": [1, None, b"x"]}, msgpack.packb({"a": [1, None, b"x"]})),
        (Flight, Flight(carrier="UA", delay=1.5), b'{"carrier":"UA","delay":1.5}'),
    ],
    ids=str,
)
def test_what_is_serialized_comes_back(given: Any, value: Any, data: bytes):
    to_bytes, from_bytes = serializer(given, "value_serializer"), deserializer(given)
    assert to_bytes
    assert from_bytes
    assert to_bytes(value) == data
    assert from_bytes(data) == value


@pytest.mark.parametrize("given", [None, "bytes"])
def test_bytes_need_no_serializer(given: Any):
    assert serializer(given, "value_serializer") is None
    assert deserializer(given) is None


def test_a_callable_is_used_as_it_is():
    to_bytes = serializer(lambda value: json.dumps(value).encode(), "value_serializer")
    assert to_bytes
    assert to_bytes([1]) == b"[1]"


@pytest.mark.parametrize("given", ["avro", 5, object()])
def test_anything_else_is_a_config_error(given: Any):
    for make in (serializer, deserializer):
        with pytest.raises(
            ConfigError, match=r"key_serializer: expected one of bytes, string, json, msgpack"
        ):
            make(given, "key_serializer")


@pytest.mark.parametrize(
    ("given", "value", "message"),
    [
        ("string", b"x", "value: TypeError: expected str, found bytes"),
        ("json", 1j, "value: TypeError: expected plain data of Python or numpy, found builtins.complex"),
        ("msgpack", object(), "value: TypeError"),
        (Flight, {"carrier": "UA"}, "value: TypeError: expected Flight, found dict"),
        (lambda value: value["missing"], {}, "value: KeyError"),
    ],
    ids=["string", "json", "msgpack", "model", "callable"],
)
def test_a_value_that_does_not_fit_is_an_error_with_its_cause(given: Any, value: Any, message: str):
    to_bytes = serializer(given, "value")
    assert to_bytes
    with pytest.raises(SerializationError, match=message) as caught:
        to_bytes(value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("given", ["json", "msgpack", Flight], ids=["json", "msgpack", "model"])
def test_bytes_that_do_not_fit_are_an_error(given: Any):
    from_bytes = deserializer(given, "value_deserializer")
    assert from_bytes
    with pytest.raises(SerializationError, match="value_deserializer: "):
        from_bytes(b"\xc1{")


@pytest.mark.parametrize(
    "value",
    [b"x", memoryview(b"x"), float("nan"), float("inf"), np.float64("nan"), np.bytes_(b"x")],
    ids=["bytes", "memoryview", "nan", "infinity", "numpy nan", "numpy bytes"],
)
@pytest.mark.parametrize(
    "place",
    [lambda value: value, lambda value: {"a": [value]}, lambda value: {value: 1}],
    ids=["alone", "within", "as key"],
)
def test_json_refuses_what_it_cannot_say(place: Any, value: Any):
    to_bytes = serializer("json", "value_serializer")
    assert to_bytes
    with pytest.raises(SerializationError, match="value_serializer: "):
        to_bytes(place(value))


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(-3), -3),
        (np.uint8(200), 200),
        (np.float32(1.5), 1.5),
        (np.float64(2.5), 2.5),
        (np.bool_(True), True),
        (np.str_("ä"), "ä"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    ],
    ids=repr,
)
def test_values_of_numpy_are_taken_as_what_they_hold(name: str, value: Any, plain: Any):
    to_bytes, from_bytes = serializer(name, "value_serializer"), deserializer(name)
    assert to_bytes
    assert from_bytes
    assert from_bytes(to_bytes({"delay": value})) == {"delay": plain}


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize(
    "value", [np.datetime64("2026-11-28", "ns"), np.array([None]), np.longdouble(1)], ids=repr
)
def test_values_of_numpy_that_would_change_are_refused(name: str, value: Any):
    to_bytes = serializer(name, "value_serializer")
    assert to_bytes
    with pytest.raises(SerializationError, match="expected plain data of Python or numpy, found numpy"):
        to_bytes([value])


@dataclass
class Delay:
    carrier: str
    since: datetime


def test_json_takes_dataclasses_and_moments_and_exact_numbers():
    to_bytes = serializer("json", "value_serializer")
    assert to_bytes
    value = [Delay("UA", datetime(2026, 11, 28, tzinfo=UTC)), Decimal("1.10"), 2**70]
    assert (
        to_bytes(value) == b'[{"carrier":"UA","since":"2026-11-28T00:00:00Z"},"1.10",1180591620717411303424]'
    )
