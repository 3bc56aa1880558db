"""A shard over a log whose every state the test sets: what is answered when the log went on before the shard looked.

Kafka: `QuorumController`, of which `QuorumControllerTest` looks only at what a whole cluster does.
"""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from rayka.errors import NotController, StorageError
from rayka.ids import OffsetAndEpoch
from rayka.node.replicated_shard import ReplicatedShard
from rayka.node.signal import Signal
from rayka.raft.election_state import ElectionState
from tests.node.log_support import Counter
from tests.node.replica_support import run, settle

NODE, OTHER, EPOCH = 3001, 3002, 5


class Log:
    """What a quorum log shows to its shard."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.high_watermark = 0
        self.leading_epoch: int | None = EPOCH
        self.latest_snapshot_id: OffsetAndEpoch | None = None
        self.failure: StorageError | None = None
        self.news = Signal()

    @property
    def election(self) -> ElectionState:
        epoch = self.leading_epoch
        return ElectionState(EPOCH + 1, OTHER) if epoch is None else ElectionState(epoch, NODE)

    @property
    def next_offset(self) -> int:
        return len(self.records)

    def append(self, records: Sequence[int]) -> int:
        self.records += records
        return len(self.records) - len(records)

    def committed(self, offset: int) -> tuple[list[tuple[int, int]], int]:
        return list(enumerate(self.records))[offset : self.high_watermark], self.high_watermark

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> Iterator[int]:
        return iter(self.records[: snapshot_id.offset])

    def trouble(self) -> str:
        return ""


class Running:
    """A shard that follows such a log; made by `start` as the active one."""

    def __init__(self) -> None:
        self.log = Log()
        self.activated_count = 0
        self.shard: ReplicatedShard[Counter, int] = ReplicatedShard(
            NODE,
            self.log,  # type: ignore[arg-type]
            Counter,
            on_active=self._on_active,
        )
        self._following: asyncio.Task[None]

    def _on_active(self) -> None:
        self.activated_count += 1

    @classmethod
    async def start(cls) -> "Running":
        running = cls()
        running._following = asyncio.create_task(running.shard.run())
        await settle()
        assert running.shard.is_active
        return running

    def submit(self, request: int) -> "asyncio.Task[int]":
        return asyncio.create_task(self.shard.submit(request))

    async def tell(self) -> None:
        """The shard looks at the log."""
        self.log.news.notify()
        await settle()

    async def stop(self) -> None:
        self._following.cancel()
        await asyncio.wait([self._following])


def test_an_answer_of_an_epoch_that_is_over_is_not_given_though_a_successor_committed_its_offset() -> (
    None
):  # A66
    async def main() -> None:
        running = await Running.start()
        asked = running.submit(7)
        await settle()
        # 1. This node leads no more. 2. Its successor writes another record at that offset. 3. The shard looks.
        running.log.leading_epoch, running.log.records, running.log.high_watermark = None, [1], 1
        await running.tell()
        with pytest.raises(NotController) as caught:
            await asked
        assert (caught.value.leader_id, caught.value.may_have_run) == (OTHER, True)
        assert running.shard.shard.total == 1
        await running.stop()

    run(main)


@pytest.mark.parametrize("epoch", [None, EPOCH + 2], ids=["another leads", "lost, and won again"])
def test_no_request_runs_between_the_end_of_an_epoch_and_the_shards_look_at_it(
    epoch: int | None,
) -> None:  # A66
    async def main() -> None:
        running = await Running.start()
        running.log.leading_epoch = epoch
        assert not running.shard.is_active
        with pytest.raises(NotController):
            await running.shard.submit(7)
        assert running.log.records == []
        await running.stop()

    run(main)


def test_an_epoch_that_was_lost_and_won_again_begins_from_what_is_committed() -> None:  # A41, A66
    async def main() -> None:
        running = await Running.start()
        lost = running.submit(7)
        await settle()
        running.log.leading_epoch, running.log.records, running.log.high_watermark = EPOCH + 2, [1], 1
        await running.tell()
        with pytest.raises(NotController):
            await lost
        assert (running.shard.is_active, running.activated_count) == (True, 2)
        assert await running.shard.submit(0) == 1
        await running.stop()

    run(main)


def test_no_answer_overtakes_those_that_wait_for_the_shard_to_look() -> None:  # A65
    async def main() -> None:
        running = await Running.start()
        order: list[str] = []
        first = running.submit(7)
        first.add_done_callback(lambda _: order.append("first"))
        await settle()
        running.log.high_watermark = 1  # committed, and the shard has not looked yet
        second = running.submit(0)
        second.add_done_callback(lambda _: order.append("second"))
        await settle()
        assert order == []
        await running.tell()
        assert (order, first.result(), second.result()) == (["first", "second"], 7, 7)
        await running.stop()

    run(main)


def test_a_caller_that_waits_for_a_commit_is_told_when_the_epoch_ends_before_it() -> None:  # A66
    async def main() -> None:
        running = await Running.start()
        running.log.records = [7]
        waiting = asyncio.create_task(running.shard.until_committed(1))
        await settle()
        running.log.leading_epoch = None
        await running.tell()
        assert isinstance(waiting.exception(), NotController)
        await running.stop()

    run(main)
