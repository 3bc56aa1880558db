"""The log under a hosted state machine, as wide as its host needs it: `QuorumLog` is one, `PartitionLog` is the other.

What the host may rely on: appended records become committed in order, or never; what was committed stays, but for a
loss that `epoch_of` shows, since of one offset and epoch there is one record in the world; the log's own records take
up offsets. Kafka: `RaftClient` with its `Listener`; `PartitionWriter`, `CoordinatorLoader` and `PartitionListener`.
"""

from collections.abc import Iterator
from typing import Protocol

from rayka.errors import StorageError
from rayka.node.signal import Signal
from rayka.shard.shard import AppendLog, RecordT


class ReplicatedLog(AppendLog[RecordT], Protocol[RecordT]):
    """One replica of a log. Its high watermark is -1 on a new leader until the beginning of its epoch is committed."""

    @property
    def news(self) -> Signal:
        """Notified at every change of what the other members say."""
        ...

    @property
    def failure(self) -> StorageError | None:
        """Why this replica is not used any more; None while it is. There is no way back from it."""
        ...

    # ---- Leadership -------------------------------------------------------------------------------------------------

    @property
    def leading_epoch(self) -> int | None:
        """The epoch that this node leads; None while it does not, or cannot append."""
        ...

    @property
    def lead_began_in(self) -> int | None:
        """The epoch in which the present lead of this node began; None while it does not lead. Between that epoch and
        `leading_epoch` no other node has led: this node has appended all records since.
        """
        ...

    @property
    def leader_id(self) -> int:
        """The node that leads as far as is known here; -1: none is known."""
        ...

    @property
    def leader_epoch(self) -> int:
        """The newest epoch that is known here."""
        ...

    def commit_problem(self) -> str:
        """What keeps records from being committed, as far as this node knows; empty when nothing does."""
        ...

    # ---- What is committed -------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """Where a new state machine begins: behind the newest snapshot, or where a compacted log begins."""
        ...

    def start_records(self) -> Iterator[RecordT]:
        """What it takes in before that: the content of that snapshot, nothing for a compacted log. Raises StorageError
        as `committed`.
        """
        ...

    def committed(self, offset: int) -> tuple[Iterator[tuple[int, RecordT]], int]:
        """Some of the records from an offset on that are committed, each with its offset, and where to read on.

        To iterate raises StorageError when one is damaged or of a type that this node does not know.
        """
        ...

    def epoch_of(self, offset: int) -> int:
        """The leader epoch of a record that is there, not before `start_offset`."""
        ...
