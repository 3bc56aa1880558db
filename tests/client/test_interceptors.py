"""Interceptors see each record of `send` before it is serialized and when it is over; they only harm themselves."""

import asyncio
from typing import Any

import pytest

import rayka.aio
from rayka import Producer
from rayka.errors import ConfigError, ErrorCode, RecordTooLarge, UnknownTopicOrPartition
from tests.client.support import QUICK, ScriptedCluster

WAIT_S = 60


class Tracing:
    """Adds a header, and keeps what it is called with."""

    def __init__(self) -> None:
        self.received: list[tuple[Any, Any]] = []

    def on_send(self, record: Any) -> Any:
        return record._replace(headers=[*(record.headers or []), ("trace", b"1")])

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.received.append((metadata, error))


def test_a_record_goes_as_the_interceptors_in_turn_make_it():
    class Renaming:
        def on_send(self, record: Any) -> Any:
            assert record.headers == [("trace", b"1")]
            assert record.value == {"n": 1}  # not serialized yet
            return record._replace(topic="flights", value=[record.value], partition=1)

    cluster, tracing = ScriptedCluster({"orders": 3, "flights": 3}), Tracing()
    with Producer(cluster, interceptors=[tracing, Renaming()], value_serializer="json", **QUICK) as producer:
        sent = producer.send("orders", {"n": 1}).result(WAIT_S)
        producer.flush(WAIT_S)
    assert (sent.topic, sent.partition) == ("flights", 1)
    assert cluster.values("flights", 1) == [b'[{"n":1}]']
    assert tracing.received == [(sent, None)]


def test_plain_values_are_intercepted_too():
    cluster, tracing = ScriptedCluster({"orders": 1}), Tracing()
    with Producer(cluster, interceptors=(tracing,)) as producer:
        for _ in range(100):
            producer.send("orders", b"x")
    assert len(tracing.received) == 100


def test_interceptors_are_called_for_failures_of_the_delivery_and_of_send():
    cluster, tracing, own = ScriptedCluster(), Tracing(), []
    with Producer(cluster, interceptors=[tracing], **QUICK) as producer:
        cluster.answers.append(ErrorCode.MESSAGE_TOO_LARGE)
        sent = producer.send("orders", b"x", on_delivery=lambda *told: own.append(told))
        assert isinstance(sent.exception(WAIT_S), RecordTooLarge)
        producer.flush(WAIT_S)
        with pytest.raises(UnknownTopicOrPartition):
            producer.send("order", b"x")
    (none, first), (nothing, second) = tracing.received
    assert none is nothing is None
    assert isinstance(first, RecordTooLarge)
    assert isinstance(second, UnknownTopicOrPartition)
    assert [(type(error), metadata) for error, metadata in own] == [(RecordTooLarge, None)]


@pytest.mark.parametrize("kind", [LookupError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_one_that_raises_is_logged_and_harms_nothing_else(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
):
    class Broken:
        def on_send(self, record: Any) -> Any:
            raise LookupError("before")

        def on_acknowledgement(self, metadata: Any, error: Any) -> None:
            raise kind("after")

    class Forgetful:
        def on_send(self, record: Any) -> None:
            """Returns nothing."""

    cluster, tracing, own = ScriptedCluster({"orders": 1}), Tracing(), []
    with Producer(cluster, interceptors=[Broken(), Forgetful(), tracing], **QUICK) as producer:
        sent = producer.send("orders", b"x", on_delivery=lambda *told: own.append(told))
        assert sent.result(WAIT_S).offset == 0
        producer.flush(WAIT_S)  # raises nothing
    assert cluster.values("orders", 0) == [b"x"]
    assert tracing.received == [(sent.result(), None)]
    assert own == [(None, sent.result())]
    for said in ("before", "after", "expected on_send to return the record, found NoneType"):
        assert said in caplog.text


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_ends_the_application_reaches_it_from_send(kind: type[BaseException]):
    class Leaving:
        def on_send(self, record: Any) -> Any:
            raise kind

    cluster = ScriptedCluster({"orders": 1})
    with Producer(cluster, interceptors=[Leaving()], **QUICK) as producer, pytest.raises(kind):
        producer.send("orders", b"x")
    assert cluster.values("orders", 0) == []


@pytest.mark.parametrize("given", [[object()], "tracing", 7])
def test_what_has_no_hook_is_a_config_error(given: Any):
    with pytest.raises(ConfigError, match="interceptors: expected"):
        Producer(ScriptedCluster(), interceptors=given)


def test_hooks_of_an_async_producer_may_be_coroutines():
    class Later:
        def __init__(self) -> None:
            self.received: list[tuple[Any, Any]] = []

        async def on_send(self, record: Any) -> Any:
            await asyncio.sleep(0)
            return record._replace(value=b"y")

        async def on_acknowledgement(self, metadata: Any, error: Any) -> None:
            await asyncio.sleep(0)
            self.received.append((metadata, error))

    async def work() -> None:
        async with rayka.aio.Producer(cluster, interceptors=[later], **QUICK) as producer:
            sent = await producer.send_and_wait("orders", b"x", partition=0)
            await producer.flush()
            assert later.received == [(sent, None)]
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send("order", b"x")
            assert len(later.received) == 2

    cluster, later = ScriptedCluster(), Later()
    asyncio.run(work())
    assert cluster.values("orders", 0) == [b"y"]
