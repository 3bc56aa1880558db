"""What one partition becomes: elections, eligible leader replicas, recovery, reassignments, epochs (B14, B40-B45)."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from rayka.controller.partition_change import Election, PartitionChangeBuilder
from rayka.ids import TopicIdPartition
from rayka.metadata.delta import changed_partition
from rayka.metadata.image import PartitionImage
from rayka.metadata.metadata_records import PartitionChangeRecord
from rayka.protocol.membership import LeaderRecoveryState
from tests.metadata.support import ORDERS

KEY = TopicIdPartition(ORDERS, 0)
RECOVERING = LeaderRecoveryState.RECOVERING


def partition(replicas: tuple[int, ...] = (1, 2, 3), **fields: Any) -> PartitionImage:
    """In leader epoch 5 and partition epoch 9, led by the first replica, all in sync; other fields as given."""
    known: dict[str, Any] = {
        "isr": replicas,
        "leader_id": replicas[0],
        "leader_epoch": 5,
        "partition_epoch": 9,
    }
    return PartitionImage(replicas=replicas, directories=directories(replicas), **(known | fields))


def directories(replicas: tuple[int, ...]) -> tuple[UUID, ...]:
    return tuple(UUID(int=each) for each in replicas)


def change(
    before: PartitionImage, *, live: tuple[int, ...] = (1, 2, 3, 4), min_isr: int = 2, has_elr: bool = True
) -> PartitionChangeBuilder:
    return PartitionChangeBuilder(
        KEY, before, is_electable=lambda broker_id: broker_id in live, min_isr=min_isr, has_elr=has_elr
    )


def record(**fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=ORDERS, partition=0, **fields)


# ---- The leader (B40) ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "live", "election", "leader_id"),
    [
        (partition(leader_id=2), (1, 2, 3), Election.NORMAL, 2),  # it may stay
        (partition(leader_id=2), (1, 2, 3), Election.PREFERRED, 1),
        (
            partition(leader_id=2, isr=(2, 3)),
            (1, 2, 3),
            Election.PREFERRED,
            2,
        ),  # the preferred one is not in sync
        (partition(leader_id=2), (2, 3), Election.PREFERRED, 2),  # or does not run
        (
            partition((3, 1, 2), leader_id=-1, isr=(2, 1)),
            (1, 2, 3),
            Election.NORMAL,
            1,
        ),  # in the order of the replicas
        (partition(leader_id=-1, isr=(1, 2)), (3,), Election.NORMAL, -1),  # no replica that is in sync
        (partition(leader_id=-1, isr=(), eligible_leader_replicas=(2, 3)), (1, 2, 3), Election.NORMAL, 2),
        (partition(leader_id=-1, isr=(), eligible_leader_replicas=(2, 1)), (1, 2, 3), Election.PREFERRED, 1),
        (partition(leader_id=-1, isr=(3,), eligible_leader_replicas=(1, 2)), (1, 2), Election.NORMAL, -1),
        (partition(leader_id=-1, isr=(), last_known_elr=(3,)), (1, 2, 3), Election.NORMAL, 3),
        (partition(leader_id=-1, isr=(), last_known_elr=(3,)), (1, 2), Election.NORMAL, -1),
        (partition(leader_id=-1, isr=(), last_known_elr=(3, 2)), (1, 2, 3), Election.NORMAL, -1),
        (
            partition(leader_id=-1, isr=(), eligible_leader_replicas=(2,), last_known_elr=(3,)),
            (1, 3),
            Election.NORMAL,
            -1,
        ),
        (partition(leader_id=-1, isr=(1,)), (3, 2), Election.UNCLEAN, 2),
        (partition(leader_id=-1, isr=(), eligible_leader_replicas=(3,)), (2, 3), Election.UNCLEAN, 3),
        (partition(leader_id=-1, isr=(), last_known_elr=(3,)), (1, 3), Election.UNCLEAN, 3),
        (partition(leader_id=-1, isr=(1,)), (), Election.UNCLEAN, -1),
    ],
)
def test_which_replica_leads(
    before: PartitionImage, live: tuple[int, ...], election: Election, leader_id: int
) -> None:  # B40
    made = change(before, live=live).election(election).build()
    after = before if made is None else changed_partition(before, made)
    assert after.leader_id == leader_id
    assert leader_id in (-1, *after.isr)


def test_a_partition_where_all_is_well_does_not_change() -> None:
    assert change(partition()).build() is None
    assert change(partition()).election(Election.PREFERRED).build() is None


def test_a_topic_may_allow_unclean_elections_when_there_is_no_other() -> None:  # B40
    before = partition(leader_id=1, isr=(1, 2))
    of_nobody = change(before, live=(3,), has_elr=False).target_isr((2,))
    assert of_nobody.build() == record(leader_id=-1, isr=(2,))
    assert of_nobody.is_unclean_election_allowed(True).build() == record(
        leader_id=3, isr=(3,), leader_recovery_state=RECOVERING
    )
    assert change(before, live=(2, 3)).target_isr((2,)).is_unclean_election_allowed(True).build() == record(
        leader_id=2, isr=(2,), eligible_leader_replicas=(1,)
    )


# ---- Recovery (B41) --------------------------------------------------------------------------------------------------


def test_an_unclean_leader_is_alone_in_sync_and_recovers() -> None:  # B41
    before = partition(leader_id=-1, isr=(), eligible_leader_replicas=(1, 2), last_known_elr=(1,))
    assert change(before, live=(3,)).election(Election.UNCLEAN).build() == record(
        leader_id=3,
        isr=(3,),
        eligible_leader_replicas=(),
        last_known_elr=(),
        leader_recovery_state=RECOVERING,
    )


def test_the_last_known_leader_is_elected_as_unclean_ones_are() -> None:  # B40, B41
    before = partition((1,), leader_id=-1, isr=(), last_known_elr=(1,))
    assert change(before, min_isr=1).build() == record(
        leader_id=1, isr=(1,), last_known_elr=(), leader_recovery_state=RECOVERING
    )


def test_one_that_recovers_and_is_elected_unclean_again_still_recovers() -> None:  # B41
    before = partition(leader_id=-1, isr=(1,), leader_recovery_state=RECOVERING)
    assert change(before, live=(2,)).election(Election.UNCLEAN).build() == record(leader_id=2, isr=(2,))


def test_a_leader_has_recovered_when_it_says_so() -> None:  # B41
    before = partition((1,), leader_recovery_state=RECOVERING)
    recovered = change(before, min_isr=1).leader_recovery_state(LeaderRecoveryState.RECOVERED)
    assert recovered.build() == record(leader_recovery_state=LeaderRecoveryState.RECOVERED)


# ---- Eligible leader replicas (B42, B43) -----------------------------------------------------------------------------


def test_a_replica_that_leaves_an_isr_that_is_large_enough_without_it_is_not_eligible() -> None:  # B42
    assert change(partition()).target_isr((1, 2)).build() == record(isr=(1, 2))


def test_a_replica_that_leaves_an_isr_that_is_too_small_then_is_eligible() -> None:  # B42
    before = partition(isr=(1, 2))
    assert change(before).target_isr((1,)).build() == record(isr=(1,), eligible_leader_replicas=(2,))
    both = partition(isr=(1, 3), leader_id=3, eligible_leader_replicas=(2,))
    assert change(both, min_isr=3).target_isr((3,)).build() == record(
        isr=(3,), eligible_leader_replicas=(1, 2)
    )


def test_the_last_member_leaves_the_isr_too_and_is_remembered() -> None:  # B42
    before = partition(isr=(1,), eligible_leader_replicas=(2,))
    assert change(before, live=()).target_isr(()).build() == record(
        isr=(), leader_id=-1, eligible_leader_replicas=(1, 2), last_known_elr=(1,)
    )


def test_a_leader_out_of_the_elr_is_in_sync_and_the_others_stay_eligible() -> None:  # B40, B42
    before = partition(isr=(), leader_id=-1, eligible_leader_replicas=(1, 2), last_known_elr=(1,))
    assert change(before, live=(2,)).build() == record(
        isr=(2,), leader_id=2, eligible_leader_replicas=(1,), last_known_elr=()
    )


def test_a_leader_out_of_the_elr_that_is_enough_alone_leaves_no_other_eligible() -> None:  # B42
    before = partition(isr=(), leader_id=-1, eligible_leader_replicas=(1, 2))
    assert change(before, live=(2,), min_isr=1).build() == record(
        isr=(2,), leader_id=2, eligible_leader_replicas=()
    )


def test_an_isr_that_is_large_enough_again_needs_no_elr() -> None:  # B42
    before = partition(isr=(1,), eligible_leader_replicas=(2,))
    assert change(before).target_isr((1, 3)).build() == record(isr=(1, 3), eligible_leader_replicas=())


def test_a_replica_that_joins_an_isr_that_stays_too_small_is_not_in_the_elr_any_more() -> None:  # B42
    before = partition(isr=(1,), eligible_leader_replicas=(2, 3))
    assert change(before, min_isr=3).target_isr((1, 2)).build() == record(
        isr=(1, 2), eligible_leader_replicas=(3,)
    )


def test_a_replica_that_may_have_lost_records_is_neither_in_sync_nor_eligible() -> None:  # B42, H3
    in_isr = change(partition(isr=(1,)), live=(2, 3)).target_isr(()).unclean_shutdown_replicas((1,))
    assert in_isr.build() == record(isr=(), leader_id=-1, last_known_elr=(1,))
    before = partition(isr=(), leader_id=-1, eligible_leader_replicas=(1, 2), last_known_elr=(2,))
    in_elr = change(before, live=()).unclean_shutdown_replicas((1,))
    assert in_elr.build() == record(eligible_leader_replicas=(2,))


def test_the_last_leader_is_remembered_until_a_replica_leads() -> None:  # B42
    before = partition(isr=(), leader_id=-1, eligible_leader_replicas=(1,), last_known_elr=(1,))
    lost = change(before, live=()).unclean_shutdown_replicas((1,)).build()
    assert lost == record(eligible_leader_replicas=())
    after = changed_partition(before, lost)
    assert after.last_known_elr == (1,)
    assert change(after, live=(1,)).build() == record(
        leader_id=1, isr=(1,), last_known_elr=(), leader_recovery_state=RECOVERING
    )


def test_the_last_member_of_an_older_clusters_isr_is_remembered_as_the_last_leader() -> None:  # B42, B43
    before = partition(isr=(2,), leader_id=-1)
    lost = change(before, live=()).target_isr(()).unclean_shutdown_replicas((2,))
    assert lost.build() == record(isr=(), last_known_elr=(2,))


def test_without_elrs_the_last_member_stays_in_the_isr() -> None:  # B43
    before = partition(isr=(1,))
    assert change(before, live=(2, 3), has_elr=False).target_isr(()).build() == record(leader_id=-1)


def test_a_cluster_without_elrs_forgets_those_it_had() -> None:  # B43
    before = partition(isr=(1,), eligible_leader_replicas=(2,))
    assert change(before, has_elr=False).build() == record(eligible_leader_replicas=())


# ---- Reassignments (B45) ---------------------------------------------------------------------------------------------


def moving(isr: tuple[int, ...], **fields: Any) -> PartitionImage:
    """From 1, 2, 3 to 2, 3, 4."""
    return partition((2, 3, 4, 1), isr=isr, adding_replicas=(4,), removing_replicas=(1,), **fields)


def cancelled(before: PartitionImage) -> PartitionChangeBuilder:
    builder = change(before).target_replicas((1, 2, 3), directories((1, 2, 3)))
    return builder.adding_replicas(()).removing_replicas(())


def test_a_reassignment_ends_when_all_that_are_added_are_in_sync() -> None:  # B45
    before = moving((1, 2, 3), leader_id=2)
    assert change(before).target_isr((1, 2)).build() == record(isr=(1, 2))
    assert change(before).target_isr((1, 4)).build() == record(
        leader_id=4,
        isr=(4,),
        eligible_leader_replicas=(2, 3),
        replicas=(2, 3, 4),
        directories=directories((2, 3, 4)),
        adding_replicas=(),
        removing_replicas=(),
    )


def test_the_leader_changes_when_it_is_dropped() -> None:  # B45
    ended = change(moving((1, 2, 3), leader_id=1)).target_isr((1, 2, 3, 4)).build()
    assert ended is not None
    assert (ended.leader_id, ended.isr, ended.replicas) == (2, (2, 3, 4), (2, 3, 4))


def test_a_leader_that_is_dropped_leads_no_more_although_no_other_replica_can() -> None:  # B45, B14
    ended = change(moving((1, 2, 3), leader_id=1), live=(1,)).target_isr((1, 2, 3, 4)).build()
    assert ended is not None
    assert (ended.leader_id, ended.isr, ended.replicas) == (-1, (2, 3, 4), (2, 3, 4))


def test_with_fewer_replicas_than_before_all_that_stay_must_be_in_sync() -> None:  # B45
    before = partition((2, 3, 4, 1), isr=(1, 2, 3), leader_id=2, adding_replicas=(), removing_replicas=(1, 4))
    assert change(before).target_isr((2,)).build() == record(isr=(2,), eligible_leader_replicas=(3, 1))
    ended = change(before).target_isr((1, 2, 3)).build()
    assert ended == record(
        leader_id=2,
        isr=(2, 3),
        replicas=(2, 3),
        directories=directories((2, 3)),
        removing_replicas=(),
    )


def test_replicas_that_are_only_added_drop_none_and_raise_no_leader_epoch() -> None:  # B14, B45
    before = partition(isr=(1, 2, 3), adding_replicas=(3,))
    assert change(before).build() == record(adding_replicas=())


def test_a_reassignment_does_not_end_unless_a_replica_in_sync_stays() -> None:  # B45
    before = partition((2, 1), isr=(1,), leader_id=1, adding_replicas=(2,), removing_replicas=(1,))
    assert change(before, min_isr=1).build() is None
    assert change(before, live=(), min_isr=1).target_isr(()).build() == record(
        isr=(), leader_id=-1, eligible_leader_replicas=(1,), last_known_elr=(1,)
    )


def test_a_replica_that_is_dropped_is_not_eligible() -> None:  # B42, B45
    before = moving((1, 2, 3, 4), leader_id=2, eligible_leader_replicas=())
    ended = change(before, min_isr=4).build()
    assert ended is not None
    assert changed_partition(before, ended).eligible_leader_replicas == ()


def test_a_reassignment_to_what_is_in_sync_already_ends_as_it_begins() -> None:  # B45
    begun = change(partition()).target_replicas((3, 2, 1), directories((3, 2, 1))).removing_replicas((1,))
    assert begun.build() == record(
        leader_id=3,
        isr=(2, 3),
        replicas=(3, 2),
        directories=directories((3, 2)),
    )


def test_a_member_of_the_isr_is_a_replica() -> None:
    with pytest.raises(AssertionError, match="a member of the ISR is no replica"):
        change(partition()).target_isr((1, 9)).build()


# ---- Epochs (B14, H12) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "leader_epochs"),
    [
        (change(partition()).target_isr((1, 2)), 0),  # the ISR shrinks
        (change(partition(isr=(1, 2))).target_isr((1, 2, 3)), 0),  # or grows
        (change(partition(isr=(1,))).target_isr((1, 2)), 0),
        (change(partition(), live=(2, 3)).target_isr((2, 3)), 1),  # another leader
        (change(partition(isr=(1,)), live=()).target_isr(()), 1),  # no leader any more
        (change(partition(isr=(), leader_id=-1, eligible_leader_replicas=(1,))), 1),  # a leader again
        (change(partition(leader_id=2)).election(Election.PREFERRED), 1),
        (change(moving((2, 3, 4, 1), leader_id=2)), 1),  # the same leader, a replica dropped
        (cancelled(moving((1, 2, 3), leader_id=2)), 1),
        (change(partition(isr=(1, 2, 3), adding_replicas=(3,))), 0),  # none dropped
        (change(partition()).target_replicas((3, 2, 1), directories((3, 2, 1))), 0),  # another order
        (change(partition((1,), leader_recovery_state=RECOVERING)).leader_recovery_state(
            LeaderRecoveryState.RECOVERED
        ), 0),
    ],
)  # fmt: skip
def test_every_change_raises_the_partition_epoch_and_some_the_leader_epoch(
    made: PartitionChangeBuilder, leader_epochs: int
) -> None:  # B14
    change_record = made.build()
    assert change_record is not None
    after = changed_partition(partition(), change_record)
    assert (after.leader_epoch - 5, after.partition_epoch - 9) == (leader_epochs, 1)


def test_a_record_says_what_is_different_and_nothing_else() -> None:  # H12
    made = change(partition()).target_isr((1, 2)).build()
    given = {name: value for name, value in msgspec.structs.asdict(made).items() if value is not None}
    assert given == {"version": 0, "topic_id": ORDERS, "partition": 0, "isr": (1, 2), "leader_id": -2}
