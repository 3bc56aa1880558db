"""`rayka produce` and `rayka consume` as processes with real pipes, on the cluster that tests share."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import IO

import pytest

import rayka
from rayka.client.consumer.record import Record
from rayka.cluster import Cluster
from tests.rays import RayNodes

pytestmark = pytest.mark.ray
RAYKA = [sys.executable, "-c", "from rayka.cli.main import main; main()"]
_DEADLINE_S = 240


class Pipes:
    """Commands on the shared cluster; ends those that still run."""

    def __init__(self, address: str, cluster: Cluster) -> None:
        self.cluster = cluster
        self._target = ("--cluster", cluster.name, "--address", address)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, stdin: "int | IO[bytes]" = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*RAYKA, *command, *self._target], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._started.append(process)
        return process

    def run(self, *command: str, given: bytes = b"") -> tuple[int, bytes, str]:
        """The exit code, what was printed, and what was said on stderr but for which Ray it is."""
        process = self.start(*command, stdin=subprocess.PIPE)
        out, err = process.communicate(given, timeout=_DEADLINE_S)
        said = [line for line in err.decode().splitlines() if not line.startswith("using the Ray at")]
        return process.returncode, out, "\n".join(said)

    def topic(self, partitions: int = 1) -> str:
        name = f"pipes-{secrets.token_hex(4)}"
        with rayka.Admin(cluster=self.cluster) as admin:
            admin.create_topic(name, partitions=partitions, configs={"retention.ms": -1})
        return name

    def records(self, topic: str) -> list[Record]:
        return list(rayka.read(topic, cluster=self.cluster))

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def pipes(cluster: Cluster, rays: RayNodes) -> Iterator[Pipes]:
    pipes = Pipes(str(rays.address), cluster)
    yield pipes
    pipes.end()


def interrupted_after_s(process: subprocess.Popen[bytes]) -> float:
    """How long the process goes on after Ctrl-C."""
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(_DEADLINE_S)
    return time.monotonic() - begin


def test_a_pipe_copies_a_topic_with_keys_headers_and_timestamps(pipes: Pipes) -> None:
    source, copy = pipes.topic(3), pipes.topic(3)
    with rayka.Producer(cluster=pipes.cluster) as producer:
        for number in range(500):
            headers = [("n", b"%d" % number), ("n", None), ("b", b"\xff\0")] if number % 3 else None
            key = b"k\xfe%d" % (number % 7)
            value = None if number % 11 == 0 else b"line one\nline two \xff %d" % number
            producer.send(source, value, key=key, headers=headers, timestamp_ms=1_000_000 + number)
    reading = pipes.start("consume", source, "--exit", "--json")
    assert reading.stdout is not None
    writing = pipes.start("produce", copy, "--json", stdin=reading.stdout)
    reading.stdout.close()
    out, _ = writing.communicate(timeout=_DEADLINE_S)
    assert (reading.wait(_DEADLINE_S), writing.returncode) == (0, 0)
    assert json.loads(out) == {"topic": copy, "records": 500}

    def content(topic: str) -> list[tuple[object, ...]]:
        records = [
            (r.partition, r.offset, r.timestamp_ms, r.key, r.value, list(r.headers))
            for r in pipes.records(topic)
        ]
        return sorted(records, key=lambda each: each[:2])

    assert content(copy) == content(source)


def test_binary_data_pass_through_lines_and_formats_unchanged(pipes: Pipes) -> None:
    topic = pipes.topic()
    every_byte = bytes(range(256))
    code, out, said = pipes.run(
        "produce",
        topic,
        "-D",
        r"\xff\0\xff",
        "-K",
        r"\0\0",
        given=b"k\0\0" + every_byte + b"\xff\0\xff\0\0\n",
    )
    assert (code, out, said) == (0, f"2 records sent to topic {topic}\n".encode(), "")
    assert [(each.key, each.value) for each in pipes.records(topic)] == [(b"k", every_byte), (b"", b"\n")]
    assert pipes.run("consume", topic, "-e", "-f", "%k|%s|") == (0, b"k|" + every_byte + b"||\n|", "")
    assert pipes.run("consume", topic, "-c", "1", "-K", ":") == (0, b"k:" + every_byte + b"\n", "")


def test_data_of_the_command_line_in_another_encoding_pass_unchanged(pipes: Pipes) -> None:
    """Ray names a driver by its command line, and holds text only."""
    topic = pipes.topic()
    key, delimiter = os.fsdecode(b"caf\xe9"), os.fsdecode(b"\xa7")
    options = ("--key", key, "--header", f"h={key}", "--delimiter", delimiter)
    code, _, said = pipes.run("produce", topic, *options, given=b"one\xa7two")
    assert (code, said) == (0, "")
    (one, two) = pipes.records(topic)
    assert (one.key, one.value, list(one.headers)) == (b"caf\xe9", b"one", [("h", b"caf\xe9")])
    assert (two.key, two.value) == (b"caf\xe9", b"two")
    shape = ("--format", f"%k{delimiter}%s\\n", "--exit")
    assert pipes.run("consume", topic, *shape) == (0, b"caf\xe9\xa7one\ncaf\xe9\xa7two\n", "")


def test_what_is_not_delivered_is_said_in_one_line_and_by_the_exit_code(pipes: Pipes) -> None:
    topic = pipes.topic()
    code, out, said = pipes.run(
        "produce", topic, "--json", given=b'{"value": "a"}\n{"value"\n{"value": "c"}\n'
    )
    error = json.loads(said)["error"]
    assert (code, out, error["type"]) == (1, b"", "SerializationError")
    assert error["message"].startswith("line 2: expected a record as JSON")
    assert [each.value for each in pipes.records(topic)] == [b"a"]
    code, out, said = pipes.run("produce", topic, "-X", "max.request.size=5000", given=b"b\n" + b"x" * 9000)
    assert (code, out, said.count("\n")) == (1, b"", 0)
    assert said.startswith("error: line 2: a record for topic")
    assert [each.value for each in pipes.records(topic)] == [b"a", b"b"]


def test_records_are_sent_and_shown_as_they_come_until_ctrl_c(pipes: Pipes) -> None:
    topic = pipes.topic()
    writing = pipes.start("produce", topic, stdin=subprocess.PIPE)
    reading = pipes.start("consume", topic, "--from", "beginning")
    assert writing.stdin is not None
    assert reading.stdout is not None
    for line in (b"first\n", b"second\n"):
        writing.stdin.write(line)
        writing.stdin.flush()
        assert reading.stdout.readline() == line
    writing.send_signal(signal.SIGINT)
    reading.send_signal(signal.SIGINT)
    out, err = writing.communicate(timeout=_DEADLINE_S)
    assert (writing.returncode, out) == (130, b"")
    assert err.split()[-6:] == b"2 records sent, 0 not interrupted".split()
    out, err = reading.communicate(timeout=_DEADLINE_S)
    assert (reading.returncode, out, err.decode().splitlines()[-1]) == (130, b"", "interrupted"), err.decode()
    assert b"Traceback" not in err


def test_a_closed_pipe_ends_a_consumer_quietly_though_nothing_more_comes(pipes: Pipes) -> None:
    topic = pipes.topic()
    with rayka.Producer(cluster=pipes.cluster) as producer:
        producer.send(topic, b"only")
    reading = pipes.start("consume", topic)
    assert reading.stdout is not None
    assert reading.stderr is not None
    assert reading.stdout.readline() == b"only\n"
    reading.stdout.close()
    assert reading.wait(_DEADLINE_S) == 1
    assert [line for line in reading.stderr if not line.startswith(b"using the Ray at")] == []


def test_ctrl_c_ends_a_consumer_whose_reader_stands_still(pipes: Pipes) -> None:
    topic = pipes.topic()
    with rayka.Producer(cluster=pipes.cluster) as producer:
        producer.send_batch(topic, [b"%06d" % number for number in range(200_000)])
    reading = pipes.start("consume", topic)
    assert reading.stdout is not None
    assert reading.stderr is not None
    first = os.read(reading.stdout.fileno(), 1)
    interrupted_after_s(reading)
    assert reading.returncode == 130
    lines = (first + reading.stdout.read()).splitlines()
    assert lines[:-1] == [b"%06d" % number for number in range(len(lines) - 1)]
    assert reading.stderr.read().splitlines()[-1] == b"interrupted"


def test_a_count_ends_a_consumer_that_would_wait(pipes: Pipes) -> None:
    topic = pipes.topic(2)
    assert pipes.run("produce", topic, "-k", "k", "-H", "a=b", given=b"1\n2\n3")[0] == 0
    code, out, said = pipes.run("consume", topic, "--count", "2", "--json")
    assert (code, said) == (0, "")
    records = [json.loads(line) for line in out.splitlines()]
    assert [(each["key"], each["value"], each["headers"]) for each in records] == [
        ("k", "1", [["a", "b"]]),
        ("k", "2", [["a", "b"]]),
    ]
    assert pipes.run("consume", topic, "--from", "-1", "--count", "1")[1] == b"3\n"
