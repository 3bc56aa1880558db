"""What one partition becomes, as one record: its leader, its ISR, which others may lead, which replicas it has.

A caller that changes a partition says what is to be different; `build` draws the conclusions, in this order: a
reassignment that is through ends (B45), the eligible leader replicas follow the ISR (B42), a leader is elected (B40,
B41), and the leader epoch rises when the leader changes or replicas are dropped, not when the ISR shrinks (B14).

With eligible leader replicas an ISR may be empty: its last members hold everything below the high watermark, which
does not move without enough of them. Without, the last member stays in the ISR (B43).

A replica whose directory its broker does not have any more gets another one there, and is copied anew. While it is
known to hold what others may lack it stays where that is, should the disk come back: no empty replica leads instead.

Kafka: `PartitionChangeBuilder`, `PartitionReassignmentReplicas`. It keeps replicas that a reassignment drops among the
eligible leaders; here they are no replicas any more, so they are not.
"""

from collections.abc import Callable
from enum import Enum
from typing import Self
from uuid import UUID

import msgspec

from rayka.errors import InvariantBroken
from rayka.ids import TopicIdPartition
from rayka.metadata.image import PartitionImage
from rayka.metadata.metadata_records import (
    CHANGEABLE_FIELDS,
    NO_LEADER,
    NO_LEADER_CHANGE,
    PartitionChangeRecord,
)
from rayka.protocol.membership import LeaderRecoveryState


class Election(Enum):
    """Which leader is wanted."""

    NORMAL = "normal"  # the present one while it may stay
    PREFERRED = "preferred"  # the first replica if it is in sync
    UNCLEAN = "unclean"  # any replica that runs, where none in sync does


class PartitionChangeBuilder:
    """One change of one partition. `is_electable` says whether a broker's replica runs and may lead (B40);
    `is_draining`, whether it leads only where no other can; `home_of`, where a replica is to be that its broker has in
    a directory.
    """

    def __init__(
        self,
        key: TopicIdPartition,
        partition: PartitionImage,
        *,
        is_electable: Callable[[int], bool],
        min_isr: int,
        has_elr: bool,
        home_of: Callable[[int, UUID], UUID] = lambda _, directory_id: directory_id,
        is_draining: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._key = key
        self._partition = partition
        self._target = partition
        self._is_electable = is_electable
        self._min_isr = min_isr
        self._has_elr = has_elr
        self._home_of = home_of
        self._is_draining = is_draining
        self._election = Election.NORMAL
        self._is_unclean_election_allowed = False
        self._unclean_shutdown_replicas: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<PartitionChangeBuilder {self._key} {self._partition!r} -> {self._target!r}>"

    # ---- What is to be different -------------------------------------------------------------------------------------

    def target_isr(self, isr: tuple[int, ...]) -> Self:
        """The replicas to be in sync."""
        return self._set(isr=isr)

    def target_replicas(self, replicas: tuple[int, ...], directories: tuple[UUID, ...]) -> Self:
        """All replicas, those being added and removed included, each with its directory."""
        if len(replicas) != len(directories):
            raise InvariantBroken(f"{self!r}: {len(directories)} directories for {replicas}")
        return self._set(replicas=replicas, directories=directories)

    def adding_replicas(self, replicas: tuple[int, ...]) -> Self:
        """Those of the replicas that a reassignment waits for."""
        return self._set(adding_replicas=replicas)

    def removing_replicas(self, replicas: tuple[int, ...]) -> Self:
        """Those of the replicas that go when a reassignment ends."""
        return self._set(removing_replicas=replicas)

    def leader_recovery_state(self, state: LeaderRecoveryState) -> Self:
        """What the leader says of its recovery (B41)."""
        return self._set(leader_recovery_state=state)

    def election(self, election: Election) -> Self:
        self._election = election
        return self

    def is_unclean_election_allowed(self, is_allowed: bool) -> Self:
        """Whether the topic would rather lose records than have no leader; NORMAL elections respect it too."""
        self._is_unclean_election_allowed = is_allowed
        return self

    def unclean_shutdown_replicas(self, replicas: tuple[int, ...]) -> Self:
        """Those that may have lost what they had acknowledged: no ELR holds them (B42, H3)."""
        self._unclean_shutdown_replicas = replicas
        return self

    def _set(self, **fields: object) -> Self:
        self._target = _replaced(self._target, **fields)
        return self

    # ---- What follows ------------------------------------------------------------------------------------------------

    def build(self) -> PartitionChangeRecord | None:
        """The record, None when it would change nothing."""
        target = _with_reassignment_completed(self._target)
        target = _replaced(target, eligible_leader_replicas=self._eligible_replicas(target))
        target = self._elected(target)
        if not target.isr and not self._has_elr:
            target = _replaced(target, isr=self._partition.isr)  # B43
        target = _replaced(target, last_known_elr=self._last_known_leader(target))
        if not set(target.isr) <= set(target.replicas):
            raise InvariantBroken(f"{self!r}: a member of the ISR is no replica")
        return self._difference(self._rehomed(target))

    def _eligible_replicas(self, target: PartitionImage) -> tuple[int, ...]:
        """B42: a replica that left the ISR while it was too small for the high watermark to move holds all below it."""
        if not self._has_elr or len(target.isr) >= self._min_isr:
            return ()
        known = (*self._partition.eligible_leader_replicas, *self._partition.isr)
        others = (*target.isr, *self._unclean_shutdown_replicas)
        return tuple(each for each in target.replicas if each in known and each not in others)

    def _elected(self, target: PartitionImage) -> PartitionImage:
        leader_id = self._clean_leader(target)
        if leader_id == NO_LEADER:
            return self._elected_unclean(target)
        if leader_id in target.isr:
            return _replaced(target, leader_id=leader_id)
        # With itself alone in the ISR the high watermark may move at once, where one is enough: then no other is whole.
        known = target.eligible_leader_replicas if self._min_isr > 1 else ()
        others = tuple(each for each in known if each != leader_id)
        return msgspec.structs.replace(
            target, leader_id=leader_id, isr=(leader_id,), eligible_leader_replicas=others
        )

    def _clean_leader(self, target: PartitionImage) -> int:
        """Of the ISR, or where that is empty of the ELR: the present leader, else the first of the replicas (B40); one
        that drains only where there is no other.
        """
        candidates = target.isr or target.eligible_leader_replicas
        order = (self._partition.leader_id, *target.replicas)
        if self._election is Election.PREFERRED:
            order = (target.replicas[0], *order)
        able = [each for each in order if each in candidates and self._is_electable(each)]
        return next((each for each in able if not self._is_draining(each)), able[0] if able else NO_LEADER)

    def _elected_unclean(self, target: PartitionImage) -> PartitionImage:
        """The leader may lack committed records: it alone is in sync from now on, and is told to recover (B41)."""
        leader_id = self._unclean_leader(target)
        if leader_id == NO_LEADER:
            return _replaced(target, leader_id=NO_LEADER)
        return msgspec.structs.replace(
            target,
            leader_id=leader_id,
            isr=(leader_id,),
            eligible_leader_replicas=(),
            leader_recovery_state=LeaderRecoveryState.RECOVERING,
        )

    def _unclean_leader(self, target: PartitionImage) -> int:
        """The one that led last, when none is known to be whole; else, if that is allowed, any replica (B40)."""
        last_known = self._partition.last_known_elr
        is_nobody_whole = not target.isr and not target.eligible_leader_replicas
        if self._has_elr and is_nobody_whole and len(last_known) == 1:
            (leader_id,) = last_known
            if leader_id in target.replicas and self._is_electable(leader_id):
                return leader_id
        if self._is_unclean_election_allowed or self._election is Election.UNCLEAN:
            return next((each for each in target.replicas if self._is_electable(each)), NO_LEADER)
        return NO_LEADER

    def _last_known_leader(self, target: PartitionImage) -> tuple[int, ...]:
        """Kept from when the ISR became empty until a replica leads again (B42)."""
        if not self._has_elr or target.has_leader:
            return ()
        before = self._partition
        if target.isr or not before.isr:
            return before.last_known_elr
        return (before.leader_id if before.has_leader else before.isr[0],)

    def _rehomed(self, target: PartitionImage) -> PartitionImage:
        """A replica that is not counted on may be copied anew, into a directory that there is (H3)."""
        counted_on = (*target.isr, *target.eligible_leader_replicas, *target.last_known_elr)
        homes = list(target.directories)
        for place, broker_id in enumerate(target.replicas):
            if broker_id not in counted_on:
                homes[place] = self._home_of(broker_id, homes[place])
        if tuple(homes) == target.directories:
            return target
        return msgspec.structs.replace(target, directories=tuple(homes))

    def _difference(self, target: PartitionImage) -> PartitionChangeRecord | None:
        before = self._partition
        changes = {
            name: value
            for name in CHANGEABLE_FIELDS
            if (value := getattr(target, name)) != getattr(before, name)
        }
        is_replica_dropped = any(each not in target.replicas for each in before.replicas)
        is_epoch_raised = target.leader_id != before.leader_id or is_replica_dropped
        if not changes and not is_epoch_raised:
            return None
        return PartitionChangeRecord(
            topic_id=self._key.topic_id,
            partition=self._key.partition,
            leader_id=target.leader_id if is_epoch_raised else NO_LEADER_CHANGE,
            **changes,
        )


def _replaced(partition: PartitionImage, **fields: object) -> PartitionImage:
    """With these fields; the partition itself when it has them already, as most have on the way through `build`."""
    for name, value in fields.items():
        if getattr(partition, name) != value:
            return msgspec.structs.replace(partition, **fields)
    return partition


def _with_reassignment_completed(partition: PartitionImage) -> PartitionImage:
    """B45: the replicas without those being removed, once all that are being added are in sync, one that stays
    is, and, where fewer replicas remain than there were, all of them are.
    """
    adding, removing = partition.adding_replicas, partition.removing_replicas
    if not adding and not removing:
        return partition
    replicas = tuple(each for each in partition.replicas if each not in removing)
    isr = tuple(each for each in partition.isr if each not in removing)
    awaited = replicas if len(removing) > len(adding) else adding
    if not isr or not replicas or not all(each in isr for each in awaited):
        return partition
    directory_of = dict(zip(partition.replicas, partition.directories, strict=True))
    return msgspec.structs.replace(
        partition,
        replicas=replicas,
        directories=tuple(directory_of[each] for each in replicas),
        isr=isr,
        adding_replicas=(),
        removing_replicas=(),
    )
