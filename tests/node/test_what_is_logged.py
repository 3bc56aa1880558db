"""What a broker logs of the partitions that it leads, and how often it says that something keeps failing."""

import asyncio
import logging
from collections.abc import Sequence
from uuid import UUID

import pytest

from rayka.ids import TopicIdPartition
from rayka.metadata.delta import MetadataDelta
from rayka.metadata.image import MetadataImage
from rayka.metadata.metadata_records import PartitionChangeRecord, PartitionRecord, TopicRecord
from rayka.node import replica_changes, tasks
from rayka.node.replica_changes import log_leadership
from rayka.node.tasks import Repeats
from rayka.sim.loop import VirtualLoop
from tests.node import replica_support
from tests.node.replica_support import BROKER, LEADER, Broker, run

TOPIC = UUID(int=5)


def grown(image: MetadataImage, records: Sequence[object]) -> MetadataImage:
    delta = MetadataDelta(image)
    for each in records:
        delta.replay(each)  # type: ignore[arg-type]
    return delta.apply(image.next_offset + len(records))


def led_by(leader_id: int, count: int = 1) -> MetadataImage:
    """A topic whose partitions have three replicas, all led by one broker."""
    directories = (UUID(int=1), UUID(int=2), UUID(int=3))
    partitions = [
        PartitionRecord(
            topic_id=TOPIC, partition=each, replicas=(1, 2, 3), directories=directories, isr=(1, 2, 3),
            leader_id=leader_id, leader_epoch=0, partition_epoch=0,
        )
        for each in range(count)
    ]  # fmt: skip
    return grown(MetadataImage(), [TopicRecord(name="orders", topic_id=TOPIC), *partitions])


def changed(image: MetadataImage, **change: object) -> MetadataImage:
    return grown(image, [PartitionChangeRecord(topic_id=TOPIC, partition=0, **change)])  # type: ignore[arg-type]


def said(caplog: pytest.LogCaptureFixture, before: MetadataImage | None, image: MetadataImage) -> list[str]:
    """What broker 1 logs of a change."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    keys = [TopicIdPartition(TOPIC, each) for each in range(len(image.topics_by_id[TOPIC].partitions))]
    states = [(each, state) for each in keys if (state := image.partition(each)) is not None]
    asyncio.run(log_leadership(1, states, before, image))
    return [each.getMessage() for each in caplog.records]


def test_leads_that_are_won_and_lost_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    one = led_by(1)
    two = changed(one, leader_id=2)
    none = changed(one, leader_id=-1, isr=(1,))
    assert said(caplog, None, one) == ["broker 1 leads orders-0 (epoch 0, ISR [1,2,3])"]
    assert said(caplog, one, two) == ["broker 1 leads no more orders-0 (broker 2 in epoch 1)"]
    assert said(caplog, one, none) == ["broker 1 leads no more orders-0 (no broker in epoch 1)"]
    assert said(caplog, two, changed(two, leader_id=1)) == ["broker 1 leads orders-0 (epoch 2, ISR [1,2,3])"]
    assert said(caplog, two, changed(two, leader_id=3)) == [], "of no concern to this broker"


def test_changes_of_the_isr_are_logged_by_the_leader(caplog: pytest.LogCaptureFixture) -> None:
    one = led_by(1)
    small = changed(one, isr=(1, 3))
    assert said(caplog, one, small) == ["broker 1 has other ISRs of orders-0 [1,3], was [1,2,3]"]
    assert said(caplog, led_by(2), changed(led_by(2), isr=(2, 3))) == []


def test_a_broker_logs_what_it_has_made_of_a_change_of_the_metadata(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, replica_changes.__name__)

    async def main() -> None:
        broker = await Broker.start()
        await broker.apply(broker.new_partition(leader_id=BROKER, isr=(BROKER, LEADER)))
        await broker.apply(replica_support.changed(isr=(BROKER,)))
        await broker.apply(replica_support.changed(leader_id=LEADER, isr=(LEADER,)))
        await broker.stop()

    run(main)
    assert [each.getMessage() for each in caplog.records if each.name == replica_changes.__name__] == [
        "broker 1 leads orders-0 (epoch 0, ISR [1,2])",
        "broker 1 has other ISRs of orders-0 [1], was [1,2]",
        "broker 1 leads no more orders-0 (broker 2 in epoch 1)",
    ]


def test_many_partitions_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = said(caplog, None, led_by(1, 2_000))
    assert line.endswith("; orders-9 (epoch 0, ISR [1,2,3]); and 1990 more")


def test_what_is_known_of_failures_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_KEPT_MAX", 2)

    async def scenario() -> None:
        failures = Repeats(logging.getLogger("rayka.test"))
        for each in ("a", "b", "c", "b", "a"):  # the third one takes the place of the first
            failures.failed(each, each)

    asyncio.run(scenario())
    assert [each.getMessage() for each in caplog.records] == ["a", "b", "c", "a"]


def test_what_keeps_failing_is_said_at_once_and_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        failures = Repeats(logging.getLogger("rayka.test"))
        failures.failed("disk", "the disk fails")
        for pause_s in (0, 10, 10, 10):
            await asyncio.sleep(pause_s)
            failures.failed("network", "the network fails")
        failures.succeeded("disk")
        failures.failed("disk", "the disk fails anew")
        await asyncio.sleep(30)
        failures.failed("network", "the network fails")

    loop = VirtualLoop()
    loop.run_until_complete(scenario())
    loop.close()
    assert [each.getMessage() for each in caplog.records] == [
        "the disk fails",
        "the network fails",
        "the disk fails anew",
        "the network fails (4 times in the last 60 s)",
    ]
