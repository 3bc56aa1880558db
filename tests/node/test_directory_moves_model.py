"""Moves between directories against a list: random appends, deletions at the start, changes of leaders, moves to and
fro, failed metadata, ends of the process and of the machine.

After each end everything acknowledged is there, for each batch was synced; when it is quiet the replica is in one
directory, the one that the metadata name, and nothing else is left of it anywhere.
"""

import asyncio
from contextlib import suppress
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayka.errors import ErrorCode
from tests.log.support import EndingDisk, MachineEnded
from tests.node.move_support import ONE, TWO, Mover
from tests.node.replica_support import BROKER, changed, run

_ACTIONS = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 5)),
    st.tuples(st.just("move"), st.sampled_from([ONE, TWO])),
    st.tuples(st.just("wait"), st.integers(0, 30)),
    st.tuples(st.just("delete"), st.integers(0, 100)),
    st.tuples(st.just("lead"), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 40)),
    st.tuples(st.just("cut power"), st.integers(0, 40)),
)


class Model:
    """The list beside the broker."""

    def __init__(self, mover: Mover, disk: EndingDisk) -> None:
        self.mover = mover
        self.disk = disk
        self.acknowledged: list[bytes] = []
        self.number = 0

    async def produce(self, count: int) -> None:
        for _ in range(count):
            value = b"%05d" % self.number * 30
            self.number += 1
            if (await self.mover.produce(value)).error_code is ErrorCode.NONE:
                self.acknowledged.append(value)
            await asyncio.sleep(0.001)

    async def act(self, name: str, amount: int | str) -> None:
        if isinstance(amount, str):
            await self.mover.ask(amount)
        elif name == "produce":
            await self.produce(amount)
        elif name == "wait":
            await asyncio.sleep(amount / 1000)
        elif name == "delete":
            log = self.mover.broker.partition().log
            start, end = log.log_start_offset, self.mover.broker.partition().high_watermark
            log.increment_log_start_offset(start + (end - start) * amount // 100)
        elif name == "lead":
            await self.mover.apply(changed(leader_id=BROKER))
        else:
            await self.end(name, amount)

    async def end(self, name: str, change_count: int) -> None:
        """At this change of the disk, while records are appended."""
        self.disk.left = change_count + 1
        with suppress(MachineEnded):
            await self.produce(10)
        await asyncio.sleep(0.02)
        await self.mover.end()
        self.disk.left = -1
        if name == "end":
            self.disk.process_crash()
        else:
            self.disk.power_loss(Random(change_count))
        await self.mover.restart(self.disk)
        self.check()

    def check(self) -> None:
        """What is there ends with all that was acknowledged, but for what was deleted, and what was not answered."""
        log, values = self.mover.broker.partition().log, self.mover.values()
        found = [each for each in values if each in set(self.acknowledged)]
        assert found == self.acknowledged[len(self.acknowledged) - len(found) :]
        assert len(values) >= log.log_end_offset - log.log_start_offset
        kept = self.mover.broker.partition().log.log_end_offset - len(self.acknowledged)
        assert log.log_start_offset > 0 or len(found) == len(self.acknowledged), kept

    async def settle(self) -> None:
        await asyncio.sleep(5)
        mover = self.mover
        assert mover.where == mover.named_path
        assert [path for path in (ONE, TWO) if mover.names(path)] == [mover.where]
        assert mover.names(mover.where) == ["orders-0"]
        assert mover.broker.replicas.problems() == []
        assert (await mover.produce(b"last")).error_code is ErrorCode.NONE
        self.check()


@settings(max_examples=40, deadline=None)
@given(st.lists(_ACTIONS, min_size=3, max_size=14))
@example([("produce", 3), ("move", TWO), ("end", 30), ("move", ONE), ("cut power", 20), ("delete", 50)])
def test_whatever_happens_a_replica_is_in_one_directory_with_all_that_was_acknowledged(
    actions: list[tuple[str, int | str]],
) -> None:
    async def main() -> None:
        disk = EndingDisk()
        model = Model(await Mover.start(disk, flush="batch", segment_bytes=1024), disk)
        await model.produce(1)
        for name, amount in actions:
            await model.act(name, amount)
        await model.settle()
        await model.mover.end()

    run(main)
