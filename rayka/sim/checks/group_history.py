"""The history of a group's members, their assignments, records and commits, and its invariants (E1-E10).

- `group-owners`: no partition has two owners in one generation.
- `group-went-back`: a member begins where the group had committed, or later; in the end that is what is stored.
- `group-skipped`: what is committed was given to some member, every record of it.
- `group-fenced`: nothing is committed by a member whose generation, or whose place, another one has taken.
- `group-redelivered`: a record is given a second time only where a member failed before its last commit.
- `group-undelivered`: in the end every record was given to the group.

A legal loss of the group's own partition, or of the partition that is read, excuses what it touches. Kafka:
`consumer_test.py`, `offset_validation_test.py` of its system tests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rayka.client.consumer.offset_commits import OffsetAndMetadata
from rayka.coordinator.group_records import OffsetValue
from rayka.coordinator.group_shard import OFFSETS_TOPIC, partition_of_group
from rayka.ids import TopicPartition
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.partition_truth import PartitionTruth
from rayka.sim.checks.replica_views import Replication

GROUP_ID = "group"
_SHOWN = 5


class Life(NamedTuple):
    """One member from its join to its end. A process lives again under another number."""

    node_id: int
    number: int
    instance_id: str = ""

    def __str__(self) -> str:
        return f"member {self.node_id}.{self.number}"


@dataclass(slots=True)
class _Reading:
    """One partition as the group reads it. `holder` owns it, or had it last and committed less than it was given;
    records below `excused_end` may be given again.
    """

    given: set[int] = field(default_factory=set)
    end: int = 0
    holder: Life | None = None
    excused_end: int = 0
    # By generation: the highest that was acknowledged.
    committed: dict[int, int] = field(default_factory=dict)

    @property
    def committed_end(self) -> int:
        return max(self.committed.values(), default=0)


class GroupHistory:
    """All that one group was told."""

    def __init__(self, checkers: Checkers, replication: Replication, offsets_partitions: int) -> None:
        self._checkers = checkers
        self._replication = replication
        self.number = partition_of_group(GROUP_ID, offsets_partitions)
        self._readings: dict[TopicPartition, _Reading] = {}
        self._owners: dict[tuple[int, TopicPartition], Life] = {}
        self._newest_generation = -1
        self._instances: dict[str, Life] = {}

    def __repr__(self) -> str:
        return f"<GroupHistory of {len(self._readings)} partitions, generation={self._newest_generation}>"

    def _reading(self, topic_partition: TopicPartition) -> _Reading:
        return self._readings.setdefault(topic_partition, _Reading())

    def _report(self, checker: str, life: Life, evidence: str) -> None:
        self._checkers.report_if(checker, life.node_id, f"{life} {evidence}")

    # ---- What is excused ---------------------------------------------------------------------------------------------

    @property
    def may_forget(self) -> bool:
        """Whether the partition that the group is on has legally lost something."""
        return self._replication.has_lost(TopicPartition(OFFSETS_TOPIC, self.number))

    def _is_excused(self, topic_partition: TopicPartition) -> bool:
        return self.may_forget or self._replication.has_lost(topic_partition)

    # ---- Ownership ---------------------------------------------------------------------------------------------------

    def on_owned(
        self, life: Life, generation_id: int, owned: Iterable[TopicPartition], added: Iterable[TopicPartition]
    ) -> None:
        """The member was told what it reads in a generation, and what of that is new to it."""
        self._newest_generation = max(self._newest_generation, generation_id)
        if life.instance_id:
            known = self._instances.get(life.instance_id, life)
            self._instances[life.instance_id] = max(known, life)
        for each in added:
            reading = self._reading(each)
            # Its last owner, perhaps this one, committed less than it was given.
            if reading.holder is not None:
                reading.excused_end = reading.end
            reading.holder = life
        for each in owned if not self.may_forget else ():
            owner = self._owners.setdefault((generation_id, each), life)
            is_itself = owner.node_id == life.node_id and bool(life.instance_id)  # a place that goes on
            if owner != life and not is_itself:
                self._report(
                    "group-owners", life, f"has {each} in generation {generation_id}, as {owner} has"
                )

    def on_released(self, life: Life, revoked: Iterable[TopicPartition], *, is_committed: bool) -> None:
        """The member reads these no more, and has, or has not, committed all that it was given."""
        for each in revoked:
            reading = self._reading(each)
            if reading.holder == life and is_committed:
                reading.holder = None

    # ---- Records -----------------------------------------------------------------------------------------------------

    def committed_end(self, topic_partition: TopicPartition) -> int:
        """The highest offset whose commit was acknowledged."""
        return self._reading(topic_partition).committed_end

    def on_begun(
        self, life: Life, generation_id: int, topic_partition: TopicPartition, offset: int, known_end: int
    ) -> None:
        """The first record that the member is given of what this generation gave it; `known_end` was committed when it
        was told so.
        """
        committed = self._reading(topic_partition).committed
        before = max((committed[each] for each in committed if each < generation_id), default=0)
        before = max(before, known_end)
        if offset < before and not self._is_excused(topic_partition):
            self._report(
                "group-went-back",
                life,
                f"begins {topic_partition} at {offset} in generation {generation_id}, {before} was committed",
            )

    def on_given(self, life: Life, topic_partition: TopicPartition, offset: int) -> None:
        """A member was given a record."""
        reading = self._reading(topic_partition)
        if reading.holder != life:  # another one reads it by now, from what was committed
            reading.excused_end = max(reading.excused_end, offset + 1)
        elif (
            offset in reading.given
            and offset >= reading.excused_end
            and not self._is_excused(topic_partition)
        ):
            self._report(
                "group-redelivered",
                life,
                f"is given {topic_partition} {offset} again; its former owner had committed that",
            )
        reading.given.add(offset)
        reading.end = max(reading.end, offset + 1)

    # ---- Commits -----------------------------------------------------------------------------------------------------

    def fence(self, life: Life, generation_id: int) -> str:
        """Why a commit that is sent now must be refused; empty where it need not be."""
        if generation_id < self._newest_generation:
            return f"generation {self._newest_generation} is begun"
        successor = self._instances.get(life.instance_id, life)
        return f"{successor} has its place" if successor > life else ""

    def on_committed(
        self, life: Life, generation_id: int, offsets: Mapping[TopicPartition, OffsetAndMetadata], fence: str
    ) -> None:
        """The coordinator has acknowledged a commit; `fence` was computed when the commit was sent."""
        if fence and not self.may_forget:
            self._report("group-fenced", life, f"commits in generation {generation_id} though {fence}")
        for each, at in offsets.items():
            reading = self._reading(each)
            reading.committed[generation_id] = max(reading.committed.get(generation_id, 0), at.offset)
            if not self._replication.has_lost(each):
                self._check_given(life, each, reading, at.offset)

    def _check_given(self, life: Life, topic_partition: TopicPartition, reading: _Reading, end: int) -> None:
        truth = self._replication.truth_named(topic_partition)
        if truth is None:
            return
        self._replication.look_at_starts(truth)
        if missing := _missing(truth, reading, end):
            self._report(
                "group-skipped", life, f"committed {end} of {topic_partition}, never given: {missing}"
            )

    # ---- The end -----------------------------------------------------------------------------------------------------

    def check_final(self, partitions: Iterable[TopicPartition]) -> str:
        """Every record of these partitions was given to the group at least once."""
        for each in partitions:
            truth = self._replication.truth_named(each)
            if truth is None or self._replication.has_lost(each):
                continue
            self._replication.look_at_starts(truth)
            missing = _missing(truth, self._reading(each), truth.end)
            if missing:
                return f"{truth!r}: never given to the group: {missing}"
        return ""

    def check_stored(self, stored: Mapping[TopicPartition, OffsetValue]) -> str:
        """No acknowledged commit is gone; `stored` is what the coordinator has in the end."""
        for each, reading in self._readings.items() if not self.may_forget else ():
            found = stored[each].offset if each in stored else 0
            if found < reading.committed_end and not self._replication.has_lost(each):
                return f"has {found} of {each}, {reading.committed_end} was acknowledged"
        return ""


def _missing(truth: PartitionTruth, reading: _Reading, end: int) -> list[int]:
    """The first of the records below `end` that no member was given, and neither compaction nor retention took."""
    offsets = range(truth.needed_begin, min(end, truth.end))
    found = (each for each in offsets if each not in reading.given and each not in truth.compacted)
    return [offset for offset, _ in zip(found, range(_SHOWN), strict=False)]
