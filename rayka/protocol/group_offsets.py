"""The offsets that a group has committed: written, read, deleted.

Kafka: OffsetCommitRequest, OffsetFetchRequest, OffsetDeleteRequest (E10). Left out: offsets of transactions.
"""

from uuid import UUID

from rayka.errors import ErrorCode
from rayka.ids import NO_EPOCH, NO_OFFSET, ZERO_ID, TopicPartition
from rayka.ports import Message, Request
from rayka.protocol.groups import check_group_id
from rayka.protocol.of_partition import OfNamedPartition
from rayka.protocol.partition_admin import PartitionResult
from rayka.protocol.request_checks import check_each_once, require

PARTITIONS_PER_COMMIT_MAX = 10_000  # each is a record, and all of them are one batch


class CommittedOffset(OfNamedPartition, frozen=True, array_like=True, gc=False):
    """The next record that the group is to read of a partition, and the leader epoch of the one before, if known. The
    offset means nothing in a topic of that name with another id; ZERO_ID where the caller does not know it.
    """

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    topic_id: UUID = ZERO_ID


class OffsetCommitResponse(Message, frozen=True, array_like=True):
    """One result for each partition, in order."""

    partitions: tuple[PartitionResult, ...]


class OffsetCommitRequest(Request[OffsetCommitResponse], frozen=True, array_like=True):
    """Commits offsets. Without a generation: of a group that has no members, which a commit creates (E10).

    `coordinator_epoch` is the `GroupCoordinator.leader_epoch` of the coordinator that is meant: one that leads in
    another epoch refuses the commit, which may be late. NO_EPOCH is not checked.
    """

    group_id: str
    partitions: tuple[CommittedOffset, ...]
    generation_id: int = NO_EPOCH
    member_id: str = ""
    group_instance_id: str = ""
    coordinator_epoch: int = NO_EPOCH

    def check(self) -> None:
        check_group_id(self.group_id)
        if self.coordinator_epoch < NO_EPOCH:
            require(False, "coordinator_epoch", f"{NO_EPOCH} or more", self.coordinator_epoch)
        check_partitions(self.partitions)
        for each in self.partitions:
            if each.offset < 0:
                require(False, f"the offset of {each.topic}-{each.partition}", "0 or more", each.offset)


def check_partitions(partitions: tuple[CommittedOffset, ...] | tuple[TopicPartition, ...]) -> None:
    """Raises InvalidRequest of too many partitions, of one named twice, and of one that cannot be."""
    found = len(partitions)
    require(found <= PARTITIONS_PER_COMMIT_MAX, "partitions", f"at most {PARTITIONS_PER_COMMIT_MAX:,}", found)
    if found > 1:
        check_each_once("partitions", [f"{each.topic}-{each.partition}" for each in partitions])
    for each in partitions:
        if each.topic == "" or not 0 <= each.partition < 2**31:
            expected = "topics with a name and numbers from 0"
            require(False, "partitions", expected, (each.topic, each.partition))


class FetchedOffset(OfNamedPartition, frozen=True, array_like=True, gc=False):
    """What the group has committed of a partition; the offset is -1 where it has committed none."""

    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str = ""
    topic_id: UUID = ZERO_ID


class OffsetFetchResponse(Message, frozen=True, array_like=True):
    """One for each partition, in order; with None, for each that has a committed offset."""

    partitions: tuple[FetchedOffset, ...]


class OffsetFetchRequest(Request[OffsetFetchResponse], frozen=True, array_like=True):
    """The committed offsets of these partitions or, with None, of all; a group that is not known has none."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None = None

    def check(self) -> None:
        check_group_id(self.group_id)
        check_partitions(self.partitions or ())


class OffsetDeleteResponse(Message, frozen=True, array_like=True):
    """One result for each partition, in order."""

    partitions: tuple[PartitionResult, ...]


class OffsetDeleteRequest(Request[OffsetDeleteResponse], frozen=True, array_like=True):
    """Forgets offsets, of topics that no member of the group subscribes to."""

    group_id: str
    partitions: tuple[TopicPartition, ...]

    def check(self) -> None:
        check_group_id(self.group_id)
        check_partitions(self.partitions)
