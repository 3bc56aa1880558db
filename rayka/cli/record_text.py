"""Records as text: the format language of `rayka consume --format`, and records as lines of JSON.

A format is parsed once, into one function for each of its parts; bytes of keys, values and headers pass through
unchanged. JSON loses nothing either: bytes that are no UTF-8 become `{"base64": …}`. Kafka: the formats are kcat's
(`kcat -C -f`); the fields of the JSON are those of `rayka.Record`.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from rayka.errors import ConfigError, SerializationError

if TYPE_CHECKING:
    from rayka.client.consumer.record import Record

Format: TypeAlias = Callable[["Record"], bytes]
_TOKEN = re.compile(r"%(.?)|\\(x[0-9A-Fa-f]{2}|.?)|[^%\\]+", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "e": b"\x1b", "0": b"\0", "\\": b"\\", "%": b"%"}
_EXPECTED = r"expected one of %t %p %o %T %k %K %s %S %R %h %%, or \n \r \t \e \0 \\ \xHH"


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are no UTF-8; msgspec writes and reads bytes as base64."""

    base64: bytes


_Data: TypeAlias = str | Base64 | None


class JsonRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A record as `rayka consume --json` prints it and `rayka produce --json` reads it.

    `rayka produce` requires only `value` and ignores topic, partition and offset.
    """

    topic: str = ""
    partition: int = 0
    offset: int = 0
    timestamp_ms: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    key: _Data = None
    value: _Data
    headers: list[tuple[str, _Data]] = []


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JsonRecord).decode


def json_line(record: "Record") -> bytes:
    """The record as one line of JSON."""
    headers = [(name, _text(value)) for name, value in record.headers]
    line = JsonRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms if record.timestamp_ms >= 0 else None,  # -1: none
        key=_text(record.key),
        value=_text(record.value),
        headers=headers,
    )
    return _encode(line) + b"\n"


def parse_json_line(line: bytes) -> JsonRecord:
    """Parses a record from a line of JSON. Raises SerializationError."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SerializationError(
            'expected a record as JSON, such as {"key": "a", "value": "b", "headers": [["c", "d"]]}, its data text, '
            f'null or {{"base64": "…"}}; found {shown(line)}: {error}'
        ) from error


def data_bytes(data: _Data) -> bytes | None:
    """A key, a value or a header's value of a JsonRecord as bytes."""
    if isinstance(data, Base64):
        return data.base64
    return None if data is None else data.encode()


def parse_format(text: str, null: bytes = b"") -> Format:
    r"""A function from a record to its printed form; `null` stands for a key or value that is None.

    %t topic, %p partition, %o offset, %T timestamp in ms, %k key, %s value, %K and %S their lengths (-1: None), %R the
    value's length as four bytes, big endian, %h headers as `name=value,name=value` (a None is NULL), %% a percent
    sign; \n \r \t \e \0 \\ \xHH as in kcat. Raises ConfigError.
    """
    fields = _fields(null)
    parts: list[bytes | Format] = []
    for match in _TOKEN.finditer(text):
        if match[1] is not None and match[1] != "%":
            if match[1] not in fields:
                raise ConfigError(f"format {text!r}: {_EXPECTED}; found {match[0]!r}")
            parts.append(fields[match[1]])
        else:
            parts.append(_literal(match[0], text))
    return _joined(parts)


def parse_delimiter(text: str) -> bytes:
    r"""A delimiter with the escapes of a format, such as `\t` or `\x00`. Raises ConfigError."""
    found = b"".join(
        _literal(match[0], text) for match in re.finditer(r"\\(x[0-9A-Fa-f]{2}|.?)|[^\\]+", text)
    )
    if not found:
        raise ConfigError("delimiter: expected one character or more, found none")
    return found


def _literal(token: str, text: str) -> bytes:
    if token[0] == "\\" and len(token) == 4:
        return bytes([int(token[2:], 16)])
    if token[0] == "\\" or token == "%%":
        if token[1:] not in _ESCAPES:
            raise ConfigError(f"format {text!r}: {_EXPECTED}; found {token!r}")
        return _ESCAPES[token[1:]]
    # Restores bytes of the command line that are no UTF-8.
    return token.encode(errors="surrogateescape")


def _fields(null: bytes) -> dict[str, Format]:
    return {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp_ms,
        "k": lambda record: null if record.key is None else record.key,
        "K": lambda record: b"%d" % _length(record.key),
        "s": lambda record: null if record.value is None else record.value,
        "S": lambda record: b"%d" % _length(record.value),
        "R": lambda record: _length(record.value).to_bytes(4, "big", signed=True),
        "h": lambda record: b",".join(
            b"%b=%b" % (name.encode(), b"NULL" if value is None else value) for name, value in record.headers
        ),
    }


def _joined(parts: list[bytes | Format]) -> Format:
    return lambda record: b"".join([part if isinstance(part, bytes) else part(record) for part in parts])


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _text(data: bytes | None) -> _Data:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Base64(data)


def shown(line: bytes) -> str:
    """The beginning of a line, for an error."""
    return repr(line[:60].decode(errors="replace")) + "…" * (len(line) > 60)
