"""A partition as a replicated log, on one broker whose followers the test plays."""

import asyncio
import math

from rayka.errors import StorageError
from rayka.ids import NO_OFFSET
from rayka.node.hosted_shards import PartitionLog, PartitionNews
from rayka.partition.follower_states import FollowerFetch
from rayka.sim.registers import CHANGES, Register, RegisterChange
from tests.node.replica_support import BROKER, LEADER, Broker, changed, now_ms, run, settle

FIRST, SECOND = RegisterChange("a", Register("1", 1)), RegisterChange("a", None)


def log_of(broker: Broker) -> PartitionLog[RegisterChange]:
    news, replica = PartitionNews(), broker.replica()
    broker.replicas.parked.add(news, [(replica.partition.topic_id, 0)])
    return PartitionLog(broker.replicas, replica, CHANGES, news, broker.settings.wall_clock_ms)


async def leading() -> Broker:
    """A broker that leads the partition, with one follower in sync."""
    broker = await Broker.start(replica_lag_time_max_ms=3_600_000)
    await broker.apply(broker.new_partition(leader_id=BROKER, isr=(BROKER, LEADER)))
    return broker


def follow(broker: Broker) -> None:
    """The follower has all there is."""
    partition = broker.partition()
    fetch = FollowerFetch(LEADER, -1, partition.log.log_end_offset, 0)
    broker.replicas.on_follower_fetch(
        broker.replica(), partition.as_leader().record_fetch(fetch, now_ms=now_ms())
    )


def test_an_append_is_no_news_to_the_log_that_made_it_and_a_commit_is() -> None:
    async def main() -> None:
        broker = await leading()
        log = log_of(broker)
        waiting = asyncio.ensure_future(log.news.wait(math.inf))
        await settle()
        log.append([FIRST])
        await settle()
        assert not waiting.done()
        follow(broker)
        await settle()
        assert waiting.done()
        await broker.stop()

    run(main)


def test_what_the_leader_appends_is_committed_when_its_followers_have_it() -> None:  # B1
    async def main() -> None:
        broker = await leading()
        log = log_of(broker)
        assert (log.leading_epoch, log.append([FIRST, SECOND])) == (0, 0)
        assert (log.next_offset, log.high_watermark) == (2, 0)
        follow(broker)
        records, next_offset = log.committed(0)
        assert (list(records), next_offset) == ([(0, FIRST), (1, SECOND)], 2)
        records, _ = log.committed(1)
        assert list(records) == [(1, SECOND)]
        await broker.stop()

    run(main)


def test_a_new_leader_knows_what_is_committed_when_its_epochs_beginning_is() -> None:  # A41, B4
    async def main() -> None:
        broker = await leading()
        log = log_of(broker)
        log.append([FIRST])
        await broker.apply(changed(leader_id=LEADER))
        assert (log.leading_epoch, log.high_watermark) == (None, 0)
        await broker.apply(changed(leader_id=BROKER))
        assert (log.leading_epoch, log.high_watermark) == (2, NO_OFFSET)
        follow(broker)
        assert log.high_watermark == 1
        await broker.stop()

    run(main)


def test_a_leader_that_goes_on_in_the_next_epoch_has_the_same_lead_and_knows_what_is_committed() -> None:
    async def main() -> None:
        broker = await leading()
        log = log_of(broker)
        log.append([FIRST])
        await broker.apply(changed(leader_id=BROKER))  # as when a replica is dropped
        assert (log.lead_began_in, log.leading_epoch, log.high_watermark) == (0, 1, 0)
        follow(broker)
        assert log.high_watermark == 1
        await broker.apply(changed(leader_id=LEADER))
        assert log.lead_began_in is None
        await broker.apply(changed(leader_id=BROKER))
        assert (log.lead_began_in, log.leading_epoch) == (3, 3)
        await broker.stop()

    run(main)


def test_a_leader_that_missed_an_epoch_has_another_lead() -> None:  # another broker may have led in it
    async def main() -> None:
        broker = await leading()
        log = log_of(broker)
        await broker.apply(changed(leader_id=LEADER), changed(leader_id=BROKER))
        assert (log.lead_began_in, log.leading_epoch) == (2, 2)
        await broker.stop()

    run(main)


def test_a_log_that_is_opened_anew_under_a_leader_waits_for_what_it_had_appended() -> None:
    async def main() -> None:
        broker = await leading()
        log_of(broker).append([FIRST])
        again = log_of(broker)  # in the same leader epoch
        assert (again.leading_epoch, again.high_watermark) == (0, NO_OFFSET)
        await broker.apply(changed(leader_id=BROKER))  # in the next epoch of the same lead
        assert (again.lead_began_in, again.leading_epoch, again.high_watermark) == (0, 1, NO_OFFSET)
        follow(broker)
        assert again.high_watermark == 1
        await broker.stop()

    run(main)


def test_a_log_that_failed_leads_no_more() -> None:
    async def main() -> None:
        broker = await leading()
        log = log_of(broker)
        broker.partition().failure = StorageError("no disk")
        assert (log.leading_epoch, str(log.failure), log.commit_problem()) == (None, "no disk", "no disk")
        await broker.stop()

    run(main)


def test_a_replica_that_was_moved_away_is_no_log_any_more() -> None:
    async def main() -> None:
        broker = await leading()
        log = log_of(broker)
        await broker.apply(broker.moved_away())
        await settle()
        assert "is not here any more" in str(log.failure)
        await broker.stop()

    run(main)


def test_what_keeps_records_from_being_committed_is_said() -> None:
    async def main() -> None:
        broker = await leading()
        log = log_of(broker)
        assert log.commit_problem() == ""
        broker.partition().config = broker.partition().config.model_copy(update={"min_insync_replicas": 3})
        assert log.commit_problem() == "of orders-0 only [1, 2] are in sync, 3 are needed"
        await broker.stop()

    run(main)
