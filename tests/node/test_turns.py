"""A broker that applies very many changes leaves others their turn: counted are turns, not time."""

import asyncio
import itertools
from collections.abc import Generator
from uuid import UUID

from rayka.ids import TopicIdPartition
from rayka.log.producer_state import SequencedBatch
from rayka.metadata.metadata_records import MetadataRecord
from rayka.node.fetch_handler import ListOffsetsHandler
from rayka.node.produce_handler import expire_producers
from rayka.node.tasks import ITEMS_PER_TURN, in_turns, result_in_turns
from rayka.protocol.fetch import LATEST_TIMESTAMP, ListOffsetsPartition, ListOffsetsRequest
from tests.metadata.support import ORDERS, topic
from tests.node import replica_support
from tests.node.fetch_support import led
from tests.node.test_metadata_follower import Controller, following

COUNT = 3 * ITEMS_PER_TURN


def test_others_have_their_turn_after_so_many_items() -> None:
    async def scenario() -> list[int]:
        taken = 0

        async def take() -> None:
            nonlocal taken
            async for _ in in_turns(range(7), 3):
                taken += 1

        seen, work = [], asyncio.ensure_future(take())
        while not work.done():
            await asyncio.sleep(0)
            seen.append(taken)
        return seen

    assert asyncio.run(scenario())[:3] == [3, 6, 7]


def test_what_comes_of_steps_is_known_after_so_many_turns() -> None:
    def steps() -> Generator[None, int, int]:
        yield from (None for _ in range(7))
        return 5

    async def scenario() -> tuple[int, int]:
        turns, work = 0, asyncio.ensure_future(result_in_turns(steps(), 3))
        while not work.done():
            await asyncio.sleep(0)
            turns += 1
        return work.result(), turns

    assert asyncio.run(scenario()) == (5, 3)


def test_what_costs_more_takes_a_turn_sooner() -> None:
    async def scenario() -> list[int]:
        taken: list[int] = []

        async def take() -> None:
            async for each in in_turns([1, 1, 5, 1, 1, 1], 3, weigh=lambda each: each):
                taken.append(each)

        seen, work = [], asyncio.ensure_future(take())
        while not work.done():
            await asyncio.sleep(0)
            seen.append(len(taken))
        return seen

    assert asyncio.run(scenario())[:3] == [3, 6, 6]


def test_partitions_of_other_brokers_are_looked_at_in_several_turns() -> None:  # H10
    async def scenario() -> None:
        broker = await replica_support.Broker.start()
        elsewhere = [broker.moved_away(number) for number in range(COUNT)]
        applying = asyncio.ensure_future(broker.apply(*elsewhere))
        turns = 0
        while not applying.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > COUNT // ITEMS_PER_TURN
        assert broker.image.partition(TopicIdPartition(ORDERS, COUNT - 1)) is not None
        await broker.stop()

    replica_support.run(scenario)


def test_producers_of_many_partitions_are_forgotten_in_several_turns() -> None:  # C8
    async def scenario() -> None:
        broker, _ = await led(3)
        states = [broker.partition(number).log.producers for number in range(3)]
        for each in states:
            for producer_id in range(ITEMS_PER_TURN):
                each.add(producer_id, 0, SequencedBatch(0, 0, 0, 0))
        config = broker.settings.config.model_copy(
            update={"producer_id_expiration_ms": 0, "producer_id_expiration_check_interval_ms": 1}
        )
        expiring = asyncio.ensure_future(expire_producers(broker.replicas, config))
        await asyncio.sleep(0.001)
        seen = []
        while any(map(len, states)):
            await asyncio.sleep(0)
            seen.append(sum(map(len, states)))
        assert list(dict.fromkeys(seen)) == [count * ITEMS_PER_TURN for count in (2, 1, 0)]
        expiring.cancel()
        await broker.stop()

    replica_support.run(scenario)


def test_offsets_of_many_partitions_are_looked_up_in_several_turns() -> None:  # G12
    async def scenario() -> None:
        broker, _ = await led()
        asked = (ListOffsetsPartition(ORDERS, 0, LATEST_TIMESTAMP),) * COUNT
        answering = asyncio.ensure_future(
            ListOffsetsHandler(broker.replicas).handle(ListOffsetsRequest(asked))
        )
        turns = 0
        while not answering.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= COUNT // ITEMS_PER_TURN
        assert [each.offset for each in answering.result().partitions] == [0] * COUNT
        await broker.stop()

    replica_support.run(scenario)


def test_committed_records_are_taken_in_in_several_turns() -> None:  # H9
    async def scenario() -> None:
        controller = Controller()
        records: list[MetadataRecord] = [
            topic(f"topic-{number}", UUID(int=number)) for number in range(COUNT)
        ]
        controller.commit(records)
        waiting = []
        async with following(controller, controller.node.quorum.high_watermark) as broker:
            while broker.follower.image.next_offset < controller.node.quorum.high_watermark:
                await asyncio.sleep(0)
                waiting.append(len(broker.follower._pending))
        taken = [before - after for before, after in itertools.pairwise(waiting)]
        assert max(taken) <= ITEMS_PER_TURN

    asyncio.run(scenario())
