"""What callbacks on the IO thread may call, while the application's thread is in a poll (E10)."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

import rayka.testing
from rayka import Admin, Producer, TopicPartition
from rayka.testing import InProcessCluster
from tests.client.group.consumer_support import QUICK, Told, new_topic, poll_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config=QUICK) as running:
        yield running


@pytest.fixture
def member(cluster: InProcessCluster) -> Iterator[Told]:
    topic = new_topic(cluster, partitions=1)
    made = Told(cluster, topic, topic=topic)
    poll_until(lambda: made.owned == [0], made)
    yield made
    made.consumer.close()


def first_partition(member: Told) -> TopicPartition:
    return member.consumer.assignment()[0]


def errors_in_callback(member: Told, *calls: Callable[[], object]) -> list[str]:
    """What each call raises in a callback of a commit, while the member polls."""
    found: list[str] = []

    def call(*_: object) -> None:
        for each in calls:
            try:
                each()
            except Exception as error:
                found.append(f"{type(error).__name__} {error}")
            else:
                found.append("")

    member.consumer.commit_async({first_partition(member): 0}, call)
    poll_until(lambda: len(found) == len(calls), member)
    return found


def test_a_commit_that_ended_may_begin_the_next_one_in_its_callback(member: Told) -> None:  # E10
    tp, last = first_partition(member), 100
    ended: list[int] = []

    def commit_next(offsets: object, error: object) -> None:
        assert error is None
        ended.append(len(ended))
        if len(ended) < last:
            member.consumer.commit_async({tp: len(ended)}, commit_next)

    member.consumer.commit_async({tp: 0}, commit_next)
    poll_until(lambda: len(ended) == last, member)
    committed = member.consumer.committed([tp])[tp]
    assert committed is not None
    assert committed.offset == last - 1


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_what_a_callback_of_a_commit_raises_is_logged_and_goes_no_further(
    member: Told, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    tp = first_partition(member)
    told: list[object] = []

    def raise_it(*_: object) -> None:
        raise kind

    member.consumer.commit_async({tp: 1}, raise_it)
    member.consumer.commit_async({tp: 2}, lambda _, problem: told.append(problem))
    poll_until(lambda: bool(told), member)
    assert told == [None]
    said = [each.message for each in caplog.records if each.levelname == "ERROR"]
    assert said == ["a callback of commit_async raised"]


def test_a_commit_of_positions_in_a_callback_is_told_to_name_offsets(member: Told) -> None:  # E10
    (error,) = errors_in_callback(member, member.consumer.commit_async)
    assert error.startswith("RuntimeError commit_async: ")
    assert "name the offsets" in error


def test_a_call_that_would_wait_for_itself_is_refused_in_a_callback_and_no_other_call_fails(
    member: Told, cluster: InProcessCluster
) -> None:
    consumer, tp = member.consumer, first_partition(member)
    with Producer(cluster=cluster) as producer, Admin(cluster=cluster) as admin:
        calls = (
            consumer.poll,
            consumer.commit,
            lambda: consumer.seek(tp, 0),
            lambda: consumer.committed([tp]),
            consumer.unsubscribe,
            consumer.close,
            producer.flush,
            producer.close,
            admin.list_topics,
        )
        for error in errors_in_callback(member, *calls):
            assert error.startswith("RuntimeError ")
            assert "was called on rayka's IO thread" in error


def test_a_delivery_callback_may_commit_what_was_delivered_on(
    member: Told, cluster: InProcessCluster
) -> None:  # E10
    tp = first_partition(member)
    told: list[object] = []

    def commit(error: object, metadata: object) -> None:
        member.consumer.commit_async({tp: 1}, lambda _, problem: told.append(problem))

    with Producer(cluster=cluster) as producer:
        producer.send(tp.topic, b"x", on_delivery=commit)
        poll_until(lambda: bool(told), member)
    assert told == [None]
