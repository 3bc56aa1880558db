"""Serializers by name, callable and model."""

import json
from typing import Any

import msgpack
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
        ("json", 1j, "value: TypeError: Encoding objects of type complex is unsupported"),
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
