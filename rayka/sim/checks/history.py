"""What the clients did and were told, and whether the committed log agrees (as Jepsen's checkers ask).

Every attempt is an operation of its own, and ends as ACKNOWLEDGED, REFUSED (the answer says that it changed nothing),
or UNKNOWN (no answer, or one that leaves it open: the change may have been made, or may yet be). An acknowledged
change is in the log, at an offset that was free when it was asked for; a refused one is not; a topic that exists was
asked for by a client. A read is an image that the log has had. Reads of a leader that has a successor and does not
know it may be old, as Kafka's may; they are counted, not refused.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from rayka.errors import ErrorCode
from rayka.ids import NO_OFFSET, ZERO_ID, is_internal
from rayka.protocol.membership import MetadataResponse
from rayka.sim.checks.ledger import Ledger, TopicLife


class Outcome(StrEnum):
    """How an operation ended, as its client knows it."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Kind(StrEnum):
    """What was asked for."""

    CREATE = "create"
    DELETE = "delete"
    READ = "read"


@dataclass(slots=True, eq=False)
class Operation:
    """One attempt. `floor` is the end of the committed log when it began."""

    number: int
    client_id: int
    kind: Kind
    name: str
    begin_ms: int
    floor: int
    outcome: Outcome = Outcome.PENDING
    what: str = ""
    topic_id: UUID = ZERO_ID
    metadata_offset: int = NO_OFFSET

    def __str__(self) -> str:
        return f"op {self.number} of {self.client_id}: {self.kind} {self.name} {self.outcome} {self.what}".rstrip()


@dataclass(slots=True)
class History:
    """All operations of a run. The checks return what is wrong, empty when nothing is."""

    ledger: Ledger
    operations: list[Operation] = field(default_factory=list)

    def begin(self, client_id: int, kind: Kind, name: str, now_ms: int) -> Operation:
        """A client is about to ask."""
        operation = Operation(len(self.operations), client_id, kind, name, now_ms, self.ledger.end)
        self.operations.append(operation)
        return operation

    def pending(self) -> list[Operation]:
        return [each for each in self.operations if each.outcome is Outcome.PENDING]

    def counts(self) -> dict[str, int]:
        """How many operations ended in which way."""
        found = Counter(each.outcome for each in self.operations)
        return {str(each): found[each] for each in Outcome}

    # ---- At each answer ----------------------------------------------------------------------------------------------

    def check_change(self, operation: Operation) -> str:
        """An acknowledged or refused change, at the moment of its answer."""
        if operation.outcome is Outcome.ACKNOWLEDGED and operation.kind is Kind.CREATE:
            return self._check_created(operation)
        if operation.outcome is Outcome.ACKNOWLEDGED:
            return self._check_deleted(operation)
        exists = operation.what == ErrorCode.TOPIC_ALREADY_EXISTS.name
        if operation.outcome is Outcome.REFUSED and exists and not self.ledger.lives(operation.name):
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
        asked: dict[tuple[Kind, str], list[Operation]] = {}
        for each in self.operations:
            if each.outcome is not Outcome.REFUSED:
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
            if each.outcome is Outcome.ACKNOWLEDGED and each.kind is Kind.CREATE:
                problem = self._check_created(each)
                if problem:
                    return f"at the end: {problem}"
        return ""


def _check_life(life: TopicLife, asked: dict[tuple[Kind, str], list[Operation]]) -> str:
    creates = asked.get((Kind.CREATE, life.name), [])
    if not any(each.floor <= life.begin and each.topic_id in (ZERO_ID, life.topic_id) for each in creates):
        return f"{life} exists, and no request that may have been granted asked for it: {creates}"
    deletes = asked.get((Kind.DELETE, life.name), [])
    if life.end is not None and not any(each.floor <= life.end for each in deletes):
        return f"{life} was removed, and no request asked for it"
    return ""
