"""A shard over a log whose every state the test sets: what is answered when the log went on before the shard looked.

Kafka: `QuorumController`, of which `QuorumControllerTest` looks only at what a whole cluster does.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rayka.errors import NotController, StorageError
from rayka.node.replicated_shard import ReplicatedShard
from rayka.node.tasks import Signal
from rayka.shard.shard import Timer
from tests.node.log_support import Counter
from tests.node.replica_support import now_ms, run, settle

NODE, OTHER, EPOCH = 3001, 3002, 5


class Log:
    """What a quorum log shows to its shard."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.high_watermark = 0
        self.leading_epoch: int | None = EPOCH
        self.has_won_again = True  # each other epoch that it leads
        self.start_offset = 0
        self.epochs: dict[int, int] = {}  # of offsets where it is not EPOCH
        self.failure: StorageError | None = None
        self.news = Signal()

    @property
    def lead_began_in(self) -> int | None:
        return EPOCH if self.leading_epoch is not None and not self.has_won_again else self.leading_epoch

    @property
    def leader_id(self) -> int:
        return OTHER if self.leading_epoch is None else NODE

    @property
    def leader_epoch(self) -> int:
        return EPOCH + 1 if self.leading_epoch is None else self.leading_epoch

    @property
    def next_offset(self) -> int:
        return len(self.records)

    def append(self, records: Sequence[int]) -> int:
        self.records += records
        return len(self.records) - len(records)

    def committed(self, offset: int) -> tuple[Iterator[tuple[int, int]], int]:
        return iter(list(enumerate(self.records))[offset : self.high_watermark]), self.high_watermark

    def start_records(self) -> Iterator[int]:
        return iter(self.records[: self.start_offset])

    def epoch_of(self, offset: int) -> int:
        return self.epochs.get(offset, EPOCH)

    def commit_problem(self) -> str:
        return ""


class Running:
    """A shard that follows such a log; made by `start` as the active one."""

    def __init__(self) -> None:
        self.log = Log()
        self.activated_count = 0
        self.shard: ReplicatedShard[Counter, int] = ReplicatedShard(
            NODE,
            self.log,
            Counter,
            on_active=self._on_active,
        )
        self._following: asyncio.Task[None]

    def _on_active(self) -> None:
        self.activated_count += 1

    @classmethod
    async def start(cls, *, records: Sequence[int] = (), **fields: Any) -> "Running":
        """On a log with these records, all committed, and other fields as given."""
        running = cls()
        running.log.records, running.log.high_watermark = list(records), len(records)
        for name, value in fields.items():
            setattr(running.log, name, value)
        running._following = asyncio.create_task(running.shard.run())
        await settle()
        assert running.shard.is_active or fields
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


def test_a_shard_goes_on_in_the_next_epoch_of_the_same_lead() -> None:
    async def main() -> None:
        running = await Running.start(records=[1])
        asked = running.submit(7)
        await settle()
        running.log.leading_epoch, running.log.has_won_again = EPOCH + 1, False
        await running.tell()
        assert (running.shard.is_active, running.shard.active_epoch) == (True, EPOCH + 1)
        running.log.high_watermark = 2
        await running.tell()
        assert (await asked, running.activated_count, running.shard.shard.offsets) == (8, 1, [0, 1])
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


# ---- Any log ---------------------------------------------------------------------------------------------------------


def test_a_standby_begins_anew_when_the_log_lost_what_it_has_replayed() -> None:  # B27
    async def main() -> None:
        running = await Running.start(leading_epoch=None, records=[1, 2, 3])
        assert running.shard.shard.total == 6
        running.log.records[1:], running.log.high_watermark = [5], 1
        await running.tell()
        assert (running.shard.shard.total, running.shard.replayed_offset) == (1, 1)
        await running.stop()

    run(main)


def test_a_standby_begins_anew_when_another_leader_wrote_at_the_offsets_that_it_has_replayed() -> None:  # B27
    async def main() -> None:
        running = await Running.start(leading_epoch=None, records=[1, 2, 3])
        running.log.records[1:] = [5, 7]
        running.log.epochs = {1: EPOCH + 1, 2: EPOCH + 1}
        await running.tell()
        assert running.shard.shard.total == 13
        await running.stop()

    run(main)


def test_a_standby_follows_a_log_that_begins_later_by_now() -> None:
    async def main() -> None:
        running = await Running.start(leading_epoch=None, records=[1, 2, 3])
        running.log.records += [4, 5]
        running.log.start_offset = 4
        running.log.high_watermark = 5
        await running.tell()
        assert (running.shard.shard.total, running.shard.shard.offsets) == (15, [3, 3, 3, 3, 4])
        await running.stop()

    run(main)


def test_a_leader_that_does_not_know_what_is_committed_says_that_it_is_loading() -> None:  # A41
    async def main() -> None:
        running = await Running.start(high_watermark=-1)
        with pytest.raises(NotController, match="controller-3001 leads, and has yet to load"):
            await running.shard.submit(7)
        assert running.shard.shard.last_not_here is not None
        assert running.shard.shard.last_not_here.is_loading
        running.log.high_watermark = 0
        await running.tell()
        assert running.shard.is_active
        await running.stop()

    run(main)


def test_the_timers_of_the_shard_fire_while_it_leads() -> None:
    async def main() -> None:
        running = await Running.start()
        running.shard.run_request(Timer("add", now_ms() + 500, 7))
        await asyncio.sleep(0.499)
        assert running.log.records == []
        await asyncio.sleep(0.002)
        assert running.log.records == [7]
        await running.stop()

    run(main)
