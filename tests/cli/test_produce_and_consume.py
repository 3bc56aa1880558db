"""`rayka produce` and `rayka consume` without Ray: usage, lines to records, where reading begins, what failed."""

import io
import time
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime

import click
import pytest

import rayka
from rayka import testing
from rayka.cli.consume_command import Start, parse_start, range_from, write
from rayka.cli.main import run
from rayka.cli.produce_command import LineSender, Parse, Sent, line_parser, parse_json, split
from rayka.cli.record_text import parse_format
from rayka.errors import ClientError, RecordTooLarge, SerializationError, UnknownTopicOrPartition
from rayka.testing import InProcessCluster

NOWHERE = ("--address", "127.0.0.1:1")


@pytest.fixture(scope="module")
def here() -> Iterator[InProcessCluster]:
    with testing.cluster(config={"log.retention.ms": -1}) as cluster:
        yield cluster


@pytest.fixture
def topic(here: InProcessCluster, request: pytest.FixtureRequest) -> str:
    """Two partitions under the test's name."""
    name = str(request.node.name.partition("[")[0])
    with rayka.Admin(cluster=here) as admin:
        admin.create_topic(name, partitions=2, if_not_exists=True)
    return name


def sent(
    here: InProcessCluster, topic: str, lines: list[bytes], parse: Parse | None = None, **options: int
) -> LineSender:
    sender = LineSender(rayka.Producer(cluster=here), topic, **options)
    sender.send(lines, parse or line_parser())
    return sender


def printed(
    here: InProcessCluster, topic: str, start: Start, *numbers: int, form: str = r"%p:%s\n"
) -> list[bytes]:
    output = io.BytesIO()
    write(range_from(topic, here, start, numbers, {}), parse_format(form), output)
    return output.getvalue().splitlines()


# ---- Lines ----


@pytest.mark.parametrize("step", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "delimiter", "lines"),
    [
        (b"a\nb\n", b"\n", [b"a", b"b"]),
        (b"a\n\nb", b"\n", [b"a", b"", b"b"]),
        (b"", b"\n", []),
        (b"\n", b"\n", [b""]),
        (b"a--b-c---d", b"--", [b"a", b"b-c", b"-d"]),
        (b"\xff\0\r\n\0", b"\0", [b"\xff", b"\r\n"]),
    ],
)
def test_lines_are_what_stands_between_delimiters_however_they_come(
    step: int, text: bytes, delimiter: bytes, lines: list[bytes]
) -> None:
    chunks = [text[at : at + step] for at in range(0, len(text), step)]
    assert list(split(chunks, delimiter)) == lines


def test_input_is_split_as_it_comes() -> None:
    seen = []

    def chunks() -> Iterator[bytes]:
        yield b"first\nsec"
        assert seen == [b"first"]
        yield b"ond\n"
        assert seen == [b"first", b"second"]

    for line in split(chunks(), b"\n"):
        seen.append(line)
    assert len(seen) == 2


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(ClientError, match=r"at most 67108864 bytes, .*is b'\\n' the delimiter"):
        list(split((b"x" * (1 << 20) for _ in range(1 << 20)), b"\n"))


@pytest.mark.parametrize(
    ("options", "line", "expected"),
    [
        ({}, b"a\r", Sent(b"a\r")),
        ({}, b"", Sent(b"")),
        ({"sends_null": True}, b"", Sent(None)),
        ({"key": "k"}, b"a", Sent(b"a", b"k")),
        ({"key_delimiter": ":"}, b"k:a:b", Sent(b"a:b", b"k")),
        ({"key_delimiter": ":"}, b":a", Sent(b"a", b"")),
        ({"key_delimiter": ":", "sends_null": True}, b":a", Sent(b"a", None)),
        ({"key_delimiter": r"\t"}, b"k\t", Sent(b"", b"k")),
        ({"headers": ("a=1", "b=")}, b"v", Sent(b"v", None, [("a", b"1"), ("b", b"")])),
    ],
)
def test_a_line_is_a_value_or_a_key_and_a_value(
    options: dict[str, object], line: bytes, expected: Sent
) -> None:
    assert line_parser(**options)(line) == expected  # type: ignore[arg-type]


# ---- Sending ----


def test_lines_without_a_key_are_sent_in_their_order_to_the_partition_given(
    here: InProcessCluster, topic: str
) -> None:
    sender = sent(here, topic, [b"%d" % number for number in range(1000)], partition=1)
    assert (sender.delivered_count, sender.failed_count, sender.line_count) == (1000, 0, 1000)
    assert printed(here, topic, Start()) == [b"1:%d" % number for number in range(1000)]


def test_a_line_that_is_no_json_is_named_and_ends_the_sending_after_what_was_before(
    here: InProcessCluster, topic: str
) -> None:
    with pytest.raises(SerializationError, match=r"^line 3: expected a record as JSON") as raised:
        sent(here, topic, [b'{"value": "a"}', b"", b'{"value": "b', b'{"value": "c"}'], parse_json)
    assert str(raised.value).endswith("; 1 record delivered, 0 failed, nothing after line 3 was sent")
    assert printed(here, topic, Start(), form=r"%s\n") == [b"a"]


def test_a_line_without_its_key_is_named(here: InProcessCluster, topic: str) -> None:
    with pytest.raises(
        SerializationError, match=r"^line 2: expected a key that ends with b':', found none in 'b'"
    ):
        sent(here, topic, [b"k:a", b"b"], line_parser(key_delimiter=":"))


def test_a_line_that_is_too_large_is_named_and_keeps_its_class(here: InProcessCluster, topic: str) -> None:
    with pytest.raises(
        RecordTooLarge, match=r"^line 2: .*; 1 record delivered, 0 failed, nothing after line 2"
    ):
        sent(here, topic, [b"a", b"x" * 2_000_000, b"c"])


def test_a_topic_that_does_not_exist_is_an_error_of_the_first_line(here: InProcessCluster) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=r"^line 1: .*rayka topic create"):
        sent(here, "nowhere", [b"a"])


def test_records_that_the_cluster_refuses_are_counted_and_the_first_is_named(here: InProcessCluster) -> None:
    with rayka.Admin(cluster=here) as admin:
        admin.create_topic("small", partitions=1, configs={"max.message.bytes": "1000"})
    with pytest.raises(
        RecordTooLarge, match=r"^line 1: .*; 0 records delivered, 1 failed, nothing after line 1"
    ):
        sent(here, "small", [b"x" * 5000])


def test_no_line_is_read_after_one_is_known_to_have_failed(here: InProcessCluster) -> None:
    with rayka.Admin(cluster=here) as admin:
        admin.create_topic("refusing", partitions=1, configs={"max.message.bytes": "1000"})
    sender = LineSender(rayka.Producer(cluster=here), "refusing")
    deadline_s = time.monotonic() + 60

    def lines() -> Iterator[bytes]:
        yield b"x" * 5000
        while not sender.failed_count and time.monotonic() < deadline_s:
            yield b"small"
        pytest.fail("asked for another line")

    with pytest.raises(RecordTooLarge, match=r"^line 1: "):
        sender.send(lines(), line_parser())
    assert sender.failed_count == 1


def test_only_so_many_lines_wait_for_their_acknowledgement(here: InProcessCluster, topic: str) -> None:
    sender = LineSender(rayka.Producer(cluster=here, linger_ms=0), topic, pending_max=10)

    def lines() -> Iterator[bytes]:
        for number in range(200):
            assert sender.line_count - sender.delivered_count <= 10
            yield b"%d" % number

    sender.send(lines(), line_parser())
    assert sender.delivered_count == 200


def test_input_of_any_length_takes_a_bounded_amount_of_memory(here: InProcessCluster, topic: str) -> None:
    producer = rayka.Producer(cluster=here, buffer_memory=1 << 20, batch_size=1 << 16)
    sender = LineSender(producer, topic)
    value = b"x" * 1000
    tracemalloc.start()
    try:
        sender.send((value + b"%d" % number for number in range(10_000)), line_parser())
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sender.delivered_count == 10_000
    assert peak_bytes < 7 << 20  # of 10 MB


# ---- Where reading begins ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", Start("earliest")),
        ("earliest", Start("earliest")),
        ("end", Start("latest")),
        ("17", Start(offset=17)),
        ("-5", Start(offset=-5)),
        ("@1700000000000", Start(1700000000000)),
        ("2026-01-31T12:00+00:00", Start(datetime(2026, 1, 31, 12, tzinfo=UTC))),
    ],
)
def test_from_is_a_word_an_offset_or_a_time(text: str, expected: Start) -> None:
    assert parse_start(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "@", "1.5", "--5"])
def test_any_other_from_is_an_error_that_says_what_there_is(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected beginning, end, an offset, -N, a time") as raised:
        parse_start(text)
    assert repr(text) in str(raised.value)


def test_reading_begins_where_from_says_in_each_partition_chosen(here: InProcessCluster, topic: str) -> None:
    for number in range(10):
        line = b'{"value": "%d", "timestamp_ms": %d}' % (number, 1000 + number // 2)
        sent(here, topic, [line], parse_json, partition=number % 2)
    assert printed(here, topic, Start(), 1) == [b"1:%d" % number for number in (1, 3, 5, 7, 9)]
    assert sorted(printed(here, topic, Start(offset=-1))) == [b"0:8", b"1:9"]
    assert printed(here, topic, Start(offset=-100), 0) == [b"0:%d" % number for number in (0, 2, 4, 6, 8)]
    assert printed(here, topic, Start(offset=4), 0) == [b"0:8"]
    assert sorted(printed(here, topic, Start(1003))) == [b"0:6", b"0:8", b"1:7", b"1:9"]
    assert printed(here, topic, Start("latest")) == []


def test_a_partition_that_does_not_exist_is_named_with_those_that_do(
    here: InProcessCluster, topic: str
) -> None:
    with pytest.raises(click.BadParameter, match=r"expected 0 to 1, the partitions of topic .*; found 7"):
        printed(here, topic, Start(), 0, 7)


# ---- Usage ----


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("consume", "TOPIC"),
        ("consume t --json --format %s", "--json says all that is printed of a record; leave out --format"),
        ("consume t --json --null", "leave out --null"),
        (
            "consume t --format %s --delimiter ,",
            "--format says all that is printed of a record; leave out --delimiter",
        ),
        ("consume t --from nowhere", "expected beginning, end, an offset"),
        ("consume t -X value.deserializer=json", "data pass unchanged"),
        ("consume t -X auto.offset.reset=latest", "--from says where reading begins"),
        ("produce t --json --key a", "--json says all of a record"),
        ("produce t --key a --key-delimiter :", "leave one out"),
        ("produce t --header a", "expected NAME=VALUE, found 'a'"),
        ("produce t -X acks", "expected KEY=VALUE, found 'acks'"),
    ],
)
def test_wrong_usage_is_found_before_a_cluster_is_looked_for(
    command: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), *NOWHERE]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", ["consume t --format %q", "produce t --delimiter %q\\q"])
def test_what_is_no_format_is_found_before_a_cluster_is_looked_for(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), *NOWHERE]) == 1
    assert "expected one of %t %p" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["consume", "produce"])
def test_help_says_a_cluster_a_ray_and_what_a_format_is(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--cluster", "--address", "--json", "--delimiter", "--config"))
