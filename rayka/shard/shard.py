"""What a replicated state machine is, and the log under it, as the runtime sees them.

Kafka: `CoordinatorShard`, `CoordinatorResult`, `ControllerWriteOperation`, `ControllerResult` (design §2,
A65).
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

RecordT = TypeVar("RecordT")
RecordT_contra = TypeVar("RecordT_contra", contravariant=True)
RecordT_co = TypeVar("RecordT_co", covariant=True)
ResponseT = TypeVar("ResponseT")
RECORDS_PER_BATCH_MAX = 10_000  # A68


class Result(NamedTuple, Generic[RecordT_co, ResponseT]):
    """What a request leads to: records to write, and the response to give once they are committed.

    The records are committed together or not at all, and are no more than 10,000 (A68).
    """

    records: Sequence[RecordT_co]
    response: ResponseT


Steps = Generator[RecordT | list[RecordT] | None, int, Result[RecordT, ResponseT]]
"""What a request leads to that is too much for one turn of the event loop: step by step a record, a list of records
that are committed together, or None for a step without any, and in the end a result. Each `yield` gives the offset that
the next record will have.

The records of the steps are written as they come, in several batches, so after a failover only the first ones may be
there; those of the result are written together. No other request runs before the end, and the state replayed meanwhile
is what the steps themselves wrote.
"""


@dataclass(frozen=True, slots=True)
class RecordCodec(Generic[RecordT]):
    """Records as the values of a log."""

    encode: Callable[[RecordT], bytes]
    decode: Callable[[bytes], RecordT]


class Shard(Protocol[RecordT]):
    """A state machine whose state is what its records say."""

    def handle(
        self, request: Any, *, now_ms: int, next_offset: int
    ) -> Result[RecordT, Any] | Steps[RecordT, Any]:
        """Decides; changes nothing. Every record below `next_offset` has been replayed, and the first record to be
        written will have that offset. Raises ApiError to refuse, at once or between two steps.
        """
        ...

    def replay(self, record: RecordT, offset: int) -> None:
        """Takes in one record: the only method that changes replicated state. It never refuses one."""
        ...


class ReplicatedLog(Protocol[RecordT_contra]):
    """Where the records go. Appended ones become committed, in order, or never."""

    @property
    def next_offset(self) -> int:
        """The offset that the next record appended gets."""
        ...

    @property
    def high_watermark(self) -> int:
        """The first offset that is not committed; -1 while that is not known."""
        ...

    def append(self, records: Sequence[RecordT_contra]) -> int:
        """Appends the records atomically, without waiting for them to be durable; the offset of the first."""
        ...
