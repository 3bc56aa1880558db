"""What `rayka consume --format` prints for a record, and that a record survives its line of JSON."""

from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.cli.produce_command import parse_json
from rayka.cli.record_text import json_line, parse_delimiter, parse_format
from rayka.client.consumer.record import Record
from rayka.errors import ConfigError, SerializationError

data = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
records = st.builds(
    Record,
    topic=st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    timestamp_ms=st.integers(0, 2**63 - 1),
    key=data,
    value=data,
    headers=st.lists(st.tuples(names, data), max_size=3),
)
RECORD = Record("flights", 3, 42, 1700000000000, b"UA", b"on \xff time", [("a", b"1"), ("b", None)])


@dataclass(frozen=True)
class Part:
    """A piece of a format, and what it prints for a record in kcat's words."""

    text: str
    expected: "bytes | str"  # bytes as they are, or the name of what is printed

    def of(self, record: Record) -> bytes:
        if isinstance(self.expected, bytes):
            return self.expected
        lengths = {
            name: -1 if each is None else len(each) for name, each in (("K", record.key), ("S", record.value))
        }
        if self.expected == "R":
            return lengths["S"].to_bytes(4, "big", signed=True)
        if self.expected == "h":
            return b",".join(k.encode() + b"=" + (b"NULL" if v is None else v) for k, v in record.headers)
        if self.expected in "ks":
            found = record.key if self.expected == "k" else record.value
            return b"" if found is None else bytes(found)
        fields = {
            "t": record.topic,
            "p": record.partition,
            "o": record.offset,
            "T": record.timestamp_ms,
            **lengths,
        }
        return str(fields[self.expected]).encode()


escapes = {r"\n": b"\n", r"\r": b"\r", r"\t": b"\t", r"\e": b"\x1b", r"\0": b"\0", r"\\": b"\\", "%%": b"%"}
parts = st.one_of(
    st.sampled_from("tpoTkKsSRh").map(lambda name: Part(f"%{name}", name)),
    st.sampled_from(sorted(escapes)).map(lambda text: Part(text, escapes[text])),
    st.integers(0, 255).map(lambda byte: Part(f"\\x{byte:02x}", bytes([byte]))),
    st.text(st.characters(exclude_characters="%\\", exclude_categories=["Cs"]), min_size=1, max_size=5).map(
        lambda text: Part(text, text.encode())
    ),
)


@given(st.lists(parts, max_size=8), records)
def test_a_format_prints_each_of_its_parts_in_order_and_bytes_unchanged(
    format_parts: list[Part], record: Record
) -> None:
    to_bytes = parse_format("".join(each.text for each in format_parts))
    assert to_bytes(record) == b"".join(each.of(record) for each in format_parts)


@given(records)
def test_a_record_is_the_same_after_its_line_of_json(record: Record) -> None:
    line = json_line(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    sent = parse_json(line)
    assert sent is not None
    assert (sent.value, sent.key, sent.headers or []) == (record.value, record.key, record.headers)
    assert sent.timestamp_ms == record.timestamp_ms


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("%\\xkq0"), max_size=12))
def test_any_text_is_a_format_or_a_config_error(text: str) -> None:
    with suppress(ConfigError):
        assert isinstance(parse_format(text)(RECORD), bytes)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_record_of_json_or_a_serialization_error(line: bytes) -> None:
    with suppress(SerializationError):
        parse_json(line)


def test_the_formats_that_people_copy_from_kcat() -> None:
    assert parse_format(r"%t [%p] %o: %k=%s\n")(RECORD) == b"flights [3] 42: UA=on \xff time\n"
    assert parse_format(r"%R%s")(RECORD) == b"\0\0\0\x09on \xff time"
    assert parse_format("%h %K %S %T")(RECORD) == b"a=1,b=NULL 2 9 1700000000000"


@pytest.mark.parametrize(("null", "printed"), [(b"", b":/-1/-1"), (b"NULL", b"NULL:NULL/-1/-1")])
def test_a_key_or_value_that_is_none_is_empty_or_null_and_has_length_minus_one(
    null: bytes, printed: bytes
) -> None:
    tombstone = Record("t", 0, 0, 0, None, None, [])
    assert parse_format("%k:%s/%K/%S", null)(tombstone) == printed


@pytest.mark.parametrize("text", ["%q", "%", "100%", r"\q", "\\", r"\x4", r"\xzz", "%\n"])
def test_what_is_no_format_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="expected one of %t %p %o") as raised:
        parse_format(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"), [(",", b","), (r"\x00", b"\0"), ("%s", b"%s"), (r"\t|", b"\t|")]
)
def test_a_delimiter_has_the_escapes_of_a_format_and_no_fields(text: str, expected: bytes) -> None:
    assert parse_delimiter(text) == expected


def test_an_empty_delimiter_is_refused() -> None:
    with pytest.raises(ConfigError, match="one character or more"):
        parse_delimiter("")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "truncated"),
        (b"{}", "missing required field `value`"),
        (b'{"value": 1}', "`int` - at `$.value`"),
        (b'{"value": "a", "vlaue": "b"}', "unknown field `vlaue`"),
        (b'{"value": "a", "timestamp_ms": -1}', ">= 0 - at `$.timestamp_ms`"),
        (b'{"value": {"base64": "@"}}', "base64"),
        (b'{"value": "\xff"}', "invalid start byte"),
        (b'{"value": "a", "headers": {"b": "c"}}', "`array`, got `object` - at `$.headers`"),
        (b"[" * 10_000, "got `array`"),
    ],
)
def test_a_line_that_is_no_record_is_shown_with_what_is_wrong(line: bytes, says: str) -> None:
    with pytest.raises(SerializationError) as raised:
        parse_json(line)
    assert says in str(raised.value)
    assert len(str(raised.value)) < 400


def test_an_empty_line_of_json_is_no_record() -> None:
    assert parse_json(b"  \r") is None
