"""The history of records: sent, acknowledged, and given to consumers (as Jepsen's checker of Kafka, kafka.md §3.7).

Every record's value is unique, so each committed record is known by it. An acknowledgement with acks=all is a promise:
the record is at that offset for ever, but for the losses that `partition_truth` calls legal. One with acks=1
promises nothing across a change of leaders. A producer that is idempotent has each record at most once in the log, in
the order of its sends; another one may repeat a record, and keeps the order of what it repeats. A consumer gets from
its first position on every committed record once, in order; a session begins anew after a legal loss.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from rayka.errors import ErrorCode
from rayka.ids import NO_NODE, NO_OFFSET, ZERO_ID, is_internal
from rayka.protocol.membership import MetadataResponse
from rayka.protocol.produce import ACKS_ALL
from rayka.sim.checks.ledger import Ledger, TopicLife
from rayka.sim.checks.partition_truth import Batch, PartitionTruth

# What the clients did and were told, and whether the committed log agrees (as Jepsen's checkers ask).
#
# Every attempt is an operation of its own, and ends as ACKNOWLEDGED, REFUSED (the answer says that it changed nothing),
# or UNKNOWN (no answer, or one that leaves it open: the change may have been made, or may yet be). An acknowledged
# change is in the log, at an offset that was free when it was asked for; a refused one is not; a topic that exists was
# asked for by a client. A read is an image that the log has had. Reads of a leader that has a successor and does not
# know it may be old, as Kafka's may; they are counted, not refused.


class OperationOutcome(StrEnum):
    """The end of an operation, as its client knows it."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class OperationKind(StrEnum):
    """The kind of an operation."""

    CREATE = "create"
    DELETE = "delete"
    READ = "read"


@dataclass(slots=True, eq=False)
class Operation:
    """One attempt. `floor` is the end of the committed log when it began."""

    number: int
    client_id: int
    kind: OperationKind
    name: str
    begin_ms: int
    floor: int
    outcome: OperationOutcome = OperationOutcome.PENDING
    what: str = ""
    topic_id: UUID = ZERO_ID
    metadata_offset: int = NO_OFFSET

    def __str__(self) -> str:
        return f"op {self.number} of {self.client_id}: {self.kind} {self.name} {self.outcome} {self.what}".rstrip()


@dataclass(slots=True)
class History:
    """All operations of a run. A check returns the problem, empty when there is none."""

    ledger: Ledger
    operations: list[Operation] = field(default_factory=list)

    def begin(self, client_id: int, kind: OperationKind, name: str, now_ms: int) -> Operation:
        """A client is about to ask."""
        operation = Operation(len(self.operations), client_id, kind, name, now_ms, self.ledger.end)
        self.operations.append(operation)
        return operation

    def pending(self) -> list[Operation]:
        return [each for each in self.operations if each.outcome is OperationOutcome.PENDING]

    def counts(self) -> dict[str, int]:
        """The number of operations by outcome."""
        found = Counter(each.outcome for each in self.operations)
        return {str(each): found[each] for each in OperationOutcome}

    # ---- At each answer ----------------------------------------------------------------------------------------------

    def check_change(self, operation: Operation) -> str:
        """An acknowledged or refused change, at the moment of its answer."""
        if operation.outcome is OperationOutcome.ACKNOWLEDGED and operation.kind is OperationKind.CREATE:
            return self._check_created(operation)
        if operation.outcome is OperationOutcome.ACKNOWLEDGED:
            return self._check_deleted(operation)
        exists = operation.what == ErrorCode.TOPIC_ALREADY_EXISTS.name
        if operation.outcome is OperationOutcome.REFUSED and exists and not self.ledger.lives(operation.name):
            return f"{operation}: refused, but it never existed"
        return ""

    def _check_created(self, operation: Operation) -> str:
        life = self.ledger.topics.get(operation.topic_id)
        if life is None or life.name != operation.name:
            return f"{operation}: topic {operation.topic_id} is not committed (committed: {self.ledger!r})"
        if not operation.floor <= life.begin < operation.metadata_offset <= self.ledger.end:
            return f"{operation}: {life} lies outside [{operation.floor}, {operation.metadata_offset})"
        return ""

    def _check_deleted(self, operation: Operation) -> str:
        lives = self.ledger.lives(operation.name)
        if any(life.end is not None and operation.floor <= life.end for life in lives):
            return ""
        return f"{operation}: no removal is committed at or after {operation.floor}, found {lives}"

    def check_read(self, operation: Operation, response: MetadataResponse) -> str:
        """A read of all topics, at the moment of its answer."""
        operation.metadata_offset = response.metadata_offset
        if response.metadata_offset > self.ledger.end:
            return f"{operation}: answers for offset {response.metadata_offset}, committed is {self.ledger!r}"
        image = self.ledger.image(response.metadata_offset)
        if image is None:
            return ""
        found = {topic.name: topic.topic_id for topic in response.topics}
        expected = {name: topic.topic_id for name, topic in image.topics.items()}
        if found == expected:
            return ""
        names = sorted({*found.items()} ^ {*expected.items()}, key=str)
        return f"{operation}: the image at offset {response.metadata_offset} differs in {names[:5]}"

    # ---- At the end --------------------------------------------------------------------------------------------------

    def check_final(self) -> str:
        """The whole history against the final log."""
        asked: dict[tuple[OperationKind, str], list[Operation]] = {}
        for each in self.operations:
            if each.outcome is not OperationOutcome.REFUSED:
                asked.setdefault((each.kind, each.name), []).append(each)
        return next(
            (
                problem
                for life in self.ledger.topics.values()
                if not is_internal(life.name) and (problem := _check_life(life, asked))
            ),
            self._check_acknowledged(),
        )

    def _check_acknowledged(self) -> str:
        for each in self.operations:
            if each.outcome is OperationOutcome.ACKNOWLEDGED and each.kind is OperationKind.CREATE:
                problem = self._check_created(each)
                if problem:
                    return f"at the end: {problem}"
        return ""


def _check_life(life: TopicLife, asked: dict[tuple[OperationKind, str], list[Operation]]) -> str:
    creates = asked.get((OperationKind.CREATE, life.name), [])
    if not any(each.floor <= life.begin and each.topic_id in (ZERO_ID, life.topic_id) for each in creates):
        return f"{life} exists, and no request that may have been granted asked for it: {creates}"
    deletes = asked.get((OperationKind.DELETE, life.name), [])
    if life.end is not None and not any(each.floor <= life.end for each in deletes):
        return f"{life} was removed, and no request asked for it"
    return ""


_SHOWN = 5


@dataclass(slots=True, eq=False)
class Send:
    """One record on its way. `number` counts within its producer."""

    producer_id: int
    number: int
    topic: str
    partition: int
    value: bytes
    acks: int
    is_idempotent: bool
    begin_ms: int
    outcome: OperationOutcome = OperationOutcome.PENDING
    what: str = ""
    offset: int = -1
    is_lost: bool = False  # it was committed, and a legal loss took it

    def __str__(self) -> str:
        where = f" at {self.offset}" if self.offset >= 0 else ""
        return f"{self.value.decode()[:24]} to {self.topic}-{self.partition} {self.outcome}{where} {self.what}".rstrip()


@dataclass(slots=True, eq=False)
class Session:
    """One consumer's reading of one partition from a position on."""

    topic: str
    partition: int
    next_offset: int = -1  # nothing was given yet
    count: int = 0


@dataclass(slots=True)
class DataHistory:
    """All records of a run. A check returns the problem, empty when there is none."""

    sends: dict[bytes, Send] = field(default_factory=dict)
    places: dict[bytes, int] = field(default_factory=dict)  # of committed values: their offsets
    # By partition and producer: the last number, and its offset.
    newest: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    polled_count: int = 0

    def begin(self, send: Send) -> Send:
        """A producer takes a record."""
        assert send.value not in self.sends, send
        self.sends[send.value] = send
        return send

    def pending(self) -> list[Send]:
        return [each for each in self.sends.values() if each.outcome is OperationOutcome.PENDING]

    def counts(self) -> dict[str, int]:
        """The number of sends by outcome."""
        found = Counter(each.outcome for each in self.sends.values())
        return {str(each): found[each] for each in OperationOutcome}

    # ---- As it happens -----------------------------------------------------------------------------------------------

    def on_committed(self, truth: PartitionTruth, batch: Batch) -> tuple[str, str] | None:
        """A batch is committed: each value was sent, to this partition, once, and after those before it.

        Of what was deleted before a replica began, it knows no producer when it leads: a retry of that is new (C5).
        A log that lost what it knew of a producer takes any sequence for the first (C5): then the batch before it is
        refused, and its producer numbers both anew.
        """
        if is_internal(truth.name):
            return None
        # Where the log of the leader began: of records below it, it never knew the producers (C5).
        begun = truth.begun.get(truth.leaders.get(batch.epoch, NO_NODE), 0)
        for offset, value in enumerate(batch.values, batch.base_offset):
            send = self.sends.get(value)
            if send is None or f"{send.topic}-{send.partition}" != truth.name:
                return "duplicate", f"{value!r} at {offset} was never sent to {truth.name}"
            before = self.places.setdefault(value, offset)
            if not send.is_idempotent:
                continue
            if before != offset and before >= begun and not truth.has_lost:
                return "duplicate", f"{send} is at {before} and at {offset}"
            self.places[value] = offset
            key = (truth.name, send.producer_id)
            newest, place = self.newest.get(key, (-1, -1))
            if newest > send.number and place >= begun and not truth.has_lost:
                return "producer-order", f"{send} at {offset} follows number {newest} of its producer"
            self.newest[key] = send.number, offset
        return None

    def on_lost(self, batches: Iterable[Batch]) -> None:
        """Committed batches were lost legally. Their producer may send the records again."""
        for batch in batches:
            for value in batch.values:
                self.places.pop(value, None)
                send = self.sends.get(value)
                if send is not None:
                    send.is_lost = True
                    self.newest.pop((f"{send.topic}-{send.partition}", send.producer_id), None)

    def on_delivered(self, send: Send, truth: PartitionTruth | None) -> str:
        """A record was acknowledged; with acks=all it is committed where the producer was told."""
        if send.acks != ACKS_ALL or truth is None:
            return ""
        batch = truth.at(send.offset)
        if batch is not None and batch.values[send.offset - batch.base_offset] == send.value:
            return ""
        is_lost_since = bool(truth.losses) and truth.losses[-1].at_ms >= send.begin_ms
        if is_lost_since or send.value in truth.seen_at(send.offset):
            send.is_lost = True
            return ""
        return f"{send}: committed there is {batch}, {truth!r}"

    def on_polled(
        self, session: Session, offset: int, value: bytes, truth: PartitionTruth | None
    ) -> tuple[str, str]:
        """A consumer was given a record."""
        self.polled_count += 1
        if truth is None:
            return "", ""
        if value not in truth.seen_at(offset):
            return (
                "consumed",
                f"{session} was given {value!r} at {offset}; committed is {truth.at(offset)}, {truth!r}",
            )
        expected, session.next_offset = session.next_offset, offset + 1
        session.count += 1
        gap = range(max(expected, truth.needed_begin), offset)
        is_gap_legal = expected < offset and all(each in truth.compacted for each in gap)
        if expected < 0 or offset == expected or truth.has_lost or is_gap_legal:
            return "", ""
        kind = "poll-skip" if offset > expected else "nonmonotonic-poll"
        return kind, f"{session} was given {offset} where {expected} was next"

    # ---- At the end --------------------------------------------------------------------------------------------------

    def check_final(self, truths: Iterable[PartitionTruth]) -> str:
        """Every record that was acknowledged with acks=all is in the log (P7)."""
        by_name = {each.name: each for each in truths}
        gone = []
        for send in self.sends.values():
            truth = by_name.get(f"{send.topic}-{send.partition}")
            if (
                send.outcome is not OperationOutcome.ACKNOWLEDGED
                or send.acks != ACKS_ALL
                or send.is_lost
                or truth is None
            ):
                continue
            batch = truth.at(send.offset)
            if batch is None or batch.values[send.offset - batch.base_offset] != send.value:
                gone.append(str(send))
        return f"acknowledged and gone: {gone[:_SHOWN]}" if gone else ""
