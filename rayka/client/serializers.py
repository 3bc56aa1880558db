"""Serializers and deserializers, chosen by name, pydantic model, callable, or object with a method.

Invariants: None (a tombstone) never reaches a serializer; any exception of a serializer arrives as SerializationError
with the cause attached. A pydantic model is used by its methods, so pydantic is not imported. Kafka: Serializer,
Deserializer.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgpack
import msgspec
import numpy as np

from rayka.errors import ConfigError, SerializationError

# Called with the data, the topic, and the record's headers.
Serializer = Callable[..., Any]
Deserializer = Serializer
_NAMES = ("bytes", "string", "json", "msgpack")
_BYTES = (bytes, bytearray, memoryview)


def serializer(given: Any, name: str) -> Serializer | None:
    """The function that turns objects into bytes; None for "bytes", which needs none.

    `given`: None, "bytes", "string" (UTF-8), "json" (compact; also dataclasses, datetimes and values of numpy; refuses
    bytes, NaN and infinity, which JSON does not have), "msgpack" (also values of numpy), a pydantic model, an object
    with `serialize(topic, headers, data)`, or a callable of the data. Errors name the option `name`. Raises ConfigError
    for anything else.
    """
    named: dict[str, Serializer] = {
        "string": _encode_text,
        "json": _encode_json,
        "msgpack": partial(msgpack.packb, default=_plain_of_numpy),
    }
    is_model = isinstance(given, type) and hasattr(given, "model_dump_json")
    return _converter(_model_encoder(given) if is_model else given, name, "serialize", named)


def deserializer(given: Any, name: str = "deserializer") -> Deserializer | None:
    """The function that turns bytes into objects; None if bytes stay bytes.

    Takes the choices of `serializer`; the method of an object is `deserialize`.
    """
    named = {"string": bytes.decode, "json": msgspec.json.decode, "msgpack": msgpack.unpackb}
    is_model = isinstance(given, type) and hasattr(given, "model_validate_json")
    return _converter(given.model_validate_json if is_model else given, name, "deserialize", named)


def _converter(given: Any, name: str, method_name: str, named: Mapping[str, Serializer]) -> Serializer | None:
    method = None if isinstance(given, type) else getattr(given, method_name, None)
    if callable(method):
        return _placed(method, name)
    if given is None or given == "bytes":
        return None
    convert = named.get(given) if isinstance(given, str) else given
    if not callable(convert):
        raise ConfigError(
            f"{name}: expected one of {', '.join(_NAMES)}, a callable, a pydantic model or an object with "
            f"`{method_name}`, found {given!r}"
        )
    return _guarded(convert, name)


def _plain_of_numpy(value: Any) -> Any:
    """A scalar or an array of numpy as Python's own objects. Raises TypeError for anything else."""
    if (
        isinstance(value, (np.generic, np.ndarray))
        and value.dtype.kind in "biufUS"
        and value.dtype != np.longdouble
    ):
        return value.tolist()
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"expected plain data of Python or numpy, found {kind}: {value!r:.60}")


def _not_json(value: Any) -> Any:
    raise TypeError(f"JSON has no {type(value).__name__}: encode them as text, or use another serializer")


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"expected str, found {type(value).__name__}")
    return value.encode()


# Not msgspec's own encoder, which is faster: it writes NaN as null and bytes as base64 without a word.
_json_text = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_not_json
).encode


def _encode_json(value: Any) -> bytes:
    built = msgspec.to_builtins(value, builtin_types=_BYTES, enc_hook=_plain_of_numpy)
    try:
        return _json_text(built).encode()
    except UnicodeEncodeError:
        raise
    except ValueError as error:
        raise ValueError("JSON has neither NaN nor infinity: send None for what is missing") from error


def _model_encoder(model: type) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        if not isinstance(value, model):
            raise TypeError(f"expected {model.__name__}, found {type(value).__name__}")
        text: str = value.model_dump_json()  # type: ignore[attr-defined]
        return text.encode()

    return encode


def _guarded(convert: Callable[[Any], Any], name: str) -> Callable[..., Any]:
    def guarded(value: Any, topic: str = "", headers: Any = ()) -> Any:
        try:
            return convert(value)
        # A user's function may raise anything.
        except Exception as error:
            raise _failed(name, error) from error

    return guarded


def _placed(convert: Callable[[str, Any, Any], Any], name: str) -> Callable[..., Any]:
    def guarded(value: Any, topic: str = "", headers: Any = ()) -> Any:
        try:
            return convert(topic, headers, value)
        except Exception as error:
            raise _failed(name, error) from error

    return guarded


def _failed(name: str, error: Exception) -> SerializationError:
    return SerializationError(f"{name}: {type(error).__name__}: {error}")
