"""What a leader appends for several requests together: which batch goes where, and what becomes of each request.

Invariants: requests are appended in their order; what is wrong with a request is its own outcome, and the others are
appended as if it had not come; a batch of a producer is checked when all that this producer sent before is in the log
(C3-C5). Kafka: the leader's half of `UnifiedLog.append`, which takes one request.
"""

from collections.abc import Iterator, Sequence

from rayka.errors import ApiError, StorageError
from rayka.log.appending import AppendInfo, PlacedBatch, check_sizes, placed_by_leader
from rayka.log.producer_state import ProducerStates
from rayka.protocol.batch_format import NO_PRODUCER_ID, RecordBatch

AppendOutcome = AppendInfo | ApiError | StorageError


def runs_without_repeats(
    requests: Sequence[Sequence[RecordBatch]],
) -> Iterator[Sequence[Sequence[RecordBatch]]]:
    """The requests in runs that may be written together: none has a producer twice. One with a producer id is of one
    batch (C1).
    """
    begin, producer_ids = 0, dict[int, None]()
    for number, batches in enumerate(requests):
        producer_id = batches[0].producer_id
        if producer_id in producer_ids:
            yield requests[begin:number]
            begin, producer_ids = number, {}
        if producer_id != NO_PRODUCER_ID:
            producer_ids[producer_id] = None
    if begin < len(requests):
        yield requests[begin:]


class LeaderRun:
    """The requests of one write. `placed` is what is to be written, one behind the other."""

    def __init__(
        self, producers: ProducerStates, offset: int, leader_epoch: int, log_append_time_ms: int | None
    ) -> None:
        self._producers = producers
        self._offset = offset
        self._leader_epoch = leader_epoch
        self._log_append_time_ms = log_append_time_ms
        self.placed: list[PlacedBatch] = []
        self.outcomes: list[AppendOutcome] = []

    def __repr__(self) -> str:
        return f"<LeaderRun of {self._producers.name} requests={len(self.outcomes)} next={self._offset}>"

    def add(self, batches: Sequence[RecordBatch], batch_bytes_max: int) -> None:
        """Places the batches of one request, unless it is refused or was appended before."""
        try:
            self.outcomes.append(self._duplicate(batches) or self._place(batches, batch_bytes_max))
        except ApiError as error:
            self.outcomes.append(error)

    def fail(self, error: StorageError) -> None:
        """The write has failed: nothing of it was appended."""
        self.placed.clear()
        self.outcomes = [
            error if isinstance(each, AppendInfo) and not each.is_duplicate else each
            for each in self.outcomes
        ]

    def _duplicate(self, batches: Sequence[RecordBatch]) -> AppendInfo | None:
        for batch in batches:
            known = self._producers.check(batch)
            if known is not None:
                return AppendInfo(
                    known.first_offset, known.last_offset, known.timestamp_ms, is_duplicate=True
                )
        return None

    def _place(self, batches: Sequence[RecordBatch], batch_bytes_max: int) -> AppendInfo:
        placed = placed_by_leader(batches, self._leader_epoch, self._offset, self._log_append_time_ms)
        check_sizes(self._producers.name, placed, batch_bytes_max)
        self.placed += placed
        first, last = placed[0].place, placed[-1].place
        self._offset = last.last_offset + 1
        return AppendInfo(
            first.base_offset, last.last_offset, max([each.place.max_timestamp_ms for each in placed])
        )
