"""A record that its topic refuses costs the others nothing (KIP-467): it fails alone, they are in the log once and in
order, whatever way they were sent and whatever happens to calls.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import rayka
import rayka.testing
from rayka import Admin, Producer
from rayka.aio import Producer as AioProducer
from rayka.errors import ApiError, InvalidRecord, InvalidTimestamp, RecordBatchTooLarge, RecordTooLarge
from rayka.testing import InProcessCluster
from tests.testing.lossy import LossyCluster

WAIT_S = 60
HOUR_MS = 3_600_000
QUICK = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 3, "linger_ms": 1}
GATHERING = {"linger_ms": 60_000}
_numbers = count()
Options = dict[str, Any]


class Kind:
    """One way in which a record can be wrong: a topic's configuration, and the options of `send` for each."""

    def __init__(
        self,
        configs: Options,
        good: Callable[[int], Options],
        bad: Callable[[int], Options],
        error: type[ApiError],
    ) -> None:
        self.configs, self.good, self.bad, self.error = configs, good, bad, error


def now_ms() -> int:
    return time.time_ns() // 1_000_000


KINDS = {
    "no key": Kind(
        {"cleanup.policy": "compact", "min.compaction.lag.ms": 24 * HOUR_MS},
        lambda number: {"value": b"%d" % number, "key": b"k%d" % number},
        lambda number: {"value": b"%d" % number},
        InvalidRecord,
    ),
    "too early": Kind(
        {"message.timestamp.before.max.ms": HOUR_MS},
        lambda number: {"value": b"%d" % number, "timestamp_ms": now_ms()},
        lambda number: {"value": b"%d" % number, "timestamp_ms": now_ms() - 2 * HOUR_MS},
        InvalidTimestamp,
    ),
    "too late": Kind(
        {"message.timestamp.after.max.ms": HOUR_MS},
        lambda number: {"value": b"%d" % number, "timestamp_ms": now_ms()},
        lambda number: {"value": b"%d" % number, "timestamp_ms": now_ms() + 2 * HOUR_MS},
        InvalidTimestamp,
    ),
    "too large": Kind(
        {"max.message.bytes": 1_000},
        lambda number: {"value": b"%d" % number},
        lambda number: {"value": Random(number).randbytes(5_000)},
        RecordTooLarge,
    ),
    "larger than a segment": Kind(
        {"segment.bytes": 1_024},
        lambda number: {"value": b"%d" % number},
        lambda number: {"value": b"%d" % number + Random(number).randbytes(5_000)},
        RecordBatchTooLarge,
    ),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config={"log.retention.ms": -1}) as running:
        yield running


def new_topic(cluster: InProcessCluster, kind: Kind) -> str:
    name = f"orders-{next(_numbers)}"
    with Admin(cluster) as admin:
        admin.create_topic(name, partitions=1, configs=kind.configs)
    return name


def log_of(cluster: InProcessCluster, topic: str) -> dict[int, int]:
    """The number that stands at each offset."""
    return {each.offset: int(each.value or b"") for each in rayka.read(topic, cluster=cluster)}


def check(cluster: InProcessCluster, topic: str, kind: Kind, sent: list[Any], is_bad: list[bool]) -> None:
    errors = [each.exception(0) for each in sent]
    assert [type(each) for each in errors] == [kind.error if bad else type(None) for bad in is_bad]
    good = [number for number, bad in enumerate(is_bad) if not bad]
    assert log_of(cluster, topic) == dict(enumerate(good))
    assert [sent[number].result(0).offset for number in good] == list(range(len(good)))


@each_kind
@pytest.mark.parametrize(
    "options", [{}, {"compression_type": "zstd"}, {"acks": 1}, {"enable_idempotence": False}], ids=str
)
def test_the_others_of_a_batch_are_in_the_log(
    cluster: InProcessCluster, kind: Kind, options: Options
) -> None:
    topic, is_bad = new_topic(cluster, kind), [number % 50 == 7 for number in range(390)]
    with Producer(cluster, **GATHERING, **options) as producer:
        sent = [producer.send(topic, **(kind.bad if bad else kind.good)(n)) for n, bad in enumerate(is_bad)]
        producer.flush(WAIT_S)
    check(cluster, topic, kind, sent, is_bad)


@each_kind
@pytest.mark.parametrize("seed", range(3))
def test_calls_that_are_lost_repeated_or_late_leave_each_of_the_others_once(  # C3, C5, C11
    cluster: InProcessCluster, kind: Kind, seed: int
) -> None:
    random, topic = Random(seed), new_topic(cluster, kind)
    is_bad = [random.random() < 0.02 for _ in range(2_000)]
    with Producer(LossyCluster(cluster, seed), **QUICK, batch_size=1_500) as producer:
        sent = [producer.send(topic, **(kind.bad if bad else kind.good)(n)) for n, bad in enumerate(is_bad)]
        producer.flush(WAIT_S)
    check(cluster, topic, kind, sent, is_bad)


@each_kind
def test_batches_behind_refused_records_wait_for_no_pause(  # C11
    cluster: InProcessCluster, kind: Kind
) -> None:
    """They are out of order for a reason that the producer knows; a stream of such batches paused for each of them."""
    topic, is_bad = new_topic(cluster, kind), [number % 100 == 7 for number in range(2_000)]
    pauses = {"retry_backoff_ms": 1_000 * WAIT_S, "retry_backoff_max_ms": 1_000 * WAIT_S}
    with Producer(cluster, **pauses, delivery_timeout_ms=3_000 * WAIT_S, batch_size=1_500) as producer:
        sent = [producer.send(topic, **(kind.bad if bad else kind.good)(n)) for n, bad in enumerate(is_bad)]
        producer.flush(WAIT_S - 10)
    check(cluster, topic, kind, sent, is_bad)


@each_kind
@pytest.mark.parametrize("which", ["all", "first", "last", "every second"])
def test_it_does_not_matter_which_records_are_wrong(
    cluster: InProcessCluster, kind: Kind, which: str
) -> None:
    total, topic = 60, new_topic(cluster, kind)
    wrong = {"all": range(total), "first": [0], "last": [total - 1], "every second": range(0, total, 2)}[
        which
    ]
    is_bad = [number in wrong for number in range(total)]
    with Producer(cluster, **GATHERING) as producer:
        sent = [producer.send(topic, **(kind.bad if bad else kind.good)(n)) for n, bad in enumerate(is_bad)]
        producer.flush(WAIT_S)
        check(cluster, topic, kind, sent, is_bad)
        after = producer.send(topic, **kind.good(total))
        producer.flush(WAIT_S)
        assert after.result(0).offset == is_bad.count(False)


def test_more_wrong_records_than_one_answer_names_all_fail_alone(cluster: InProcessCluster) -> None:
    kind = KINDS["no key"]
    topic, is_bad = new_topic(cluster, kind), [number % 10 != 3 for number in range(3_000)]
    with Producer(cluster, **GATHERING) as producer:
        sent = [producer.send(topic, **(kind.bad if bad else kind.good)(n)) for n, bad in enumerate(is_bad)]
        producer.flush(WAIT_S)
    check(cluster, topic, kind, sent, is_bad)


def test_each_callback_gets_the_fate_of_its_own_record(cluster: InProcessCluster) -> None:
    kind, told = KINDS["no key"], dict[int, Any]()
    topic = new_topic(cluster, kind)
    with Producer(cluster, **GATHERING) as producer:
        for number in range(10):
            producer.send(
                topic,
                **(kind.bad if number == 4 else kind.good)(number),
                on_delivery=lambda error, metadata, number=number: told.__setitem__(
                    number, error or metadata.offset
                ),
            )
        producer.flush(WAIT_S)
    assert isinstance(told.pop(4), InvalidRecord)
    assert told == {0: 0, 1: 1, 2: 2, 3: 3, 5: 4, 6: 5, 7: 6, 8: 7, 9: 8}


def test_an_async_producer_does_the_same(cluster: InProcessCluster) -> None:
    async def work() -> list[Any]:
        async with AioProducer(cluster, **GATHERING) as producer:
            sent = [await producer.send(topic, **(kind.bad if n == 2 else kind.good)(n)) for n in range(5)]
            await producer.flush()
            return await asyncio.gather(*sent, return_exceptions=True)

    kind = KINDS["no key"]
    topic = new_topic(cluster, kind)
    found = asyncio.run(work())
    assert isinstance(found.pop(2), InvalidRecord)
    assert [each.offset for each in found] == [0, 1, 2, 3]


def test_rows_that_are_all_in_the_log_are_no_failures(cluster: InProcessCluster) -> None:
    topic = new_topic(cluster, KINDS["too early"])
    with Producer(cluster, **QUICK) as producer:
        assert producer.send_batch(topic, [b"1", b"2"]).failures(WAIT_S) == []
        assert producer.send_batch(topic, []).failures(WAIT_S) == []


@pytest.mark.parametrize("partitions", [1, 4])
def test_a_batch_of_columns_loses_its_wrong_rows_only(cluster: InProcessCluster, partitions: int) -> None:
    kind = KINDS["no key"]
    topic = f"orders-{next(_numbers)}"
    with Admin(cluster) as admin:
        admin.create_topic(topic, partitions=partitions, configs=kind.configs)
    keys = [None if number % 9 == 5 else b"k%d" % number for number in range(500)]
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": [b"%d" % n for n in range(500)]})
    with Producer(cluster, **QUICK) as producer:
        future = producer.send_batch(topic, pa.concat_tables([table[:100], table[100:]]))
        failures = future.failures(WAIT_S)
        with pytest.raises(InvalidRecord) as raised:
            future.result()
    assert {type(each.error) for each in failures} == {InvalidRecord}
    assert sorted(row for each in failures for row in each.rows) == list(range(5, 500, 9))
    assert raised.value.__notes__ == [
        "55 of 500 rows of a send_batch were not acknowledged, the first is row 5; `failures` of its future has all"
    ]
    found = sorted(int(each.value or b"") for each in rayka.read(topic, cluster=cluster))
    assert found == [number for number in range(500) if number % 9 != 5]
