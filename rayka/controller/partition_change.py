"""The change of one partition, as one record: leader, ISR, eligible leader replicas (ELR), replicas.

A caller sets the fields that change; `build` adds the consequences, in this order:
1. A reassignment with all adding replicas in sync ends (B45).
2. The ELR follows the ISR (B42).
3. A leader is elected (B40, B41).
4. The leader epoch rises if the leader changes or replicas are dropped, not if the ISR shrinks (B14).

With ELR an ISR may be empty: its last members hold everything below the high watermark, because the high watermark does
not move while the ISR is too small. Without ELR the last member stays in the ISR (B43).

A replica whose broker has lost the replica's directory gets another directory, and is copied anew. A replica in the ISR
or the ELR, or the last leader, keeps the lost directory in case the disk comes back: otherwise an empty replica would
lead.

Kafka: `PartitionChangeBuilder`, `PartitionReassignmentReplicas`. Kafka keeps replicas that a reassignment drops in the
ELR; here they leave the ELR with the replicas.
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
    """The kind of an election."""

    # Keeps the present leader while that one may lead.
    NORMAL = "normal"
    # Prefers the first replica if it may lead.
    PREFERRED = "preferred"
    # As NORMAL; if no replica in the ISR or the ELR can lead, any electable replica does.
    UNCLEAN = "unclean"


class PartitionChangeBuilder:
    """Builds the record of one change of one partition.

    `is_electable`: whether a broker runs, and the directory of its replica works (B40). `is_draining`: whether a broker
    leads only if no other can. `home_of`: the directory that a replica gets, given its broker and present directory.
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

    # ---- Wanted fields -------------------------------------------------------------------------------------

    def target_isr(self, isr: tuple[int, ...]) -> Self:
        """Sets the ISR."""
        return self._set(isr=isr)

    def target_replicas(self, replicas: tuple[int, ...], directories: tuple[UUID, ...]) -> Self:
        """Sets all replicas, adding and removing ones included, each with its directory."""
        if len(replicas) != len(directories):
            raise InvariantBroken(f"{self!r}: {len(directories)} directories for {replicas}")
        return self._set(replicas=replicas, directories=directories)

    def adding_replicas(self, replicas: tuple[int, ...]) -> Self:
        """Sets the replicas that a reassignment adds and waits for. Invariant: they are among the replicas."""
        return self._set(adding_replicas=replicas)

    def removing_replicas(self, replicas: tuple[int, ...]) -> Self:
        """Sets the replicas that leave when the reassignment ends. Invariant: they are among the replicas."""
        return self._set(removing_replicas=replicas)

    def leader_recovery_state(self, state: LeaderRecoveryState) -> Self:
        """Sets whether the leader still recovers from an unclean election (B41)."""
        return self._set(leader_recovery_state=state)

    def election(self, election: Election) -> Self:
        self._election = election
        return self

    def is_unclean_election_allowed(self, is_allowed: bool) -> Self:
        """Sets whether the topic prefers a loss of records to having no leader. Holds for all kinds of elections."""
        self._is_unclean_election_allowed = is_allowed
        return self

    def unclean_shutdown_replicas(self, replicas: tuple[int, ...]) -> Self:
        """Names replicas that may have lost acknowledged records; they leave the ELR (B42, H3)."""
        self._unclean_shutdown_replicas = replicas
        return self

    def _set(self, **fields: object) -> Self:
        self._target = _replaced(self._target, **fields)
        return self

    # ---- Consequences ------------------------------------------------------------------------------------------------

    def build(self) -> PartitionChangeRecord | None:
        """The record of the change; None if nothing changes."""
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
        """B42. The ELR: replicas that left an ISR smaller than `min_isr` hold everything below the high watermark,
        because the high watermark did not move since.
        """
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
        # If one in-sync replica is enough, the new leader moves the high watermark alone: others lack records then.
        known = target.eligible_leader_replicas if self._min_isr > 1 else ()
        others = tuple(each for each in known if each != leader_id)
        return msgspec.structs.replace(
            target, leader_id=leader_id, isr=(leader_id,), eligible_leader_replicas=others
        )

    def _clean_leader(self, target: PartitionImage) -> int:
        """The leader from the ISR, or with an empty ISR from the ELR (B40): the present leader, else the first replica.
        A draining broker is chosen only if there is no other.
        """
        candidates = target.isr or target.eligible_leader_replicas
        order = (self._partition.leader_id, *target.replicas)
        if self._election is Election.PREFERRED:
            order = (target.replicas[0], *order)
        able = [each for each in order if each in candidates and self._is_electable(each)]
        return next((each for each in able if not self._is_draining(each)), able[0] if able else NO_LEADER)

    def _elected_unclean(self, target: PartitionImage) -> PartitionImage:
        """Elects a leader that may lack committed records; it is alone in the ISR, and has to recover (B41)."""
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
        """The last leader if ISR and ELR are empty; else, if allowed, the first electable replica (B40)."""
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
        """The last leader, known from the moment the ISR became empty until a replica leads again (B42)."""
        if not self._has_elr or target.has_leader:
            return ()
        before = self._partition
        if target.isr or not before.isr:
            return before.last_known_elr
        return (before.leader_id if before.has_leader else before.isr[0],)

    def _rehomed(self, target: PartitionImage) -> PartitionImage:
        """Moves replicas out of lost directories, except members of ISR and ELR and the last leader (H3)."""
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
    """The partition with these fields; the same object if nothing changes, which is the usual case in `build`."""
    for name, value in fields.items():
        if getattr(partition, name) != value:
            return msgspec.structs.replace(partition, **fields)
    return partition


def _with_reassignment_completed(partition: PartitionImage) -> PartitionImage:
    """B45. Ends the reassignment: drops `removing_replicas`. Allowed when every adding replica is in the ISR, at least
    one remaining replica is, and, if the count shrinks, all remaining ones are.
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
