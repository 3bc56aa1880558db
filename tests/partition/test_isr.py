"""Replicas in sync: joining, leaving, and proposals with their outcomes (B2, B10-B12, B41)."""

from typing import Any

import msgspec
import pytest

from rayka.errors import ErrorCode, NotLeaderOrFollower, StorageError
from rayka.ids import NO_EPOCH, ZERO_ID
from rayka.metadata.image import BrokerImage, PartitionImage
from rayka.partition.follower_states import IsrState
from rayka.partition.partition import Partition
from rayka.partition.partition_follower import PartitionFollower
from rayka.protocol.membership import (
    AlterPartitionItem,
    AlterPartitionResult,
    IsrMember,
    LeaderRecoveryState,
)
from rayka.protocol.produce import ACKS_LEADER
from tests.partition.support import (
    BROKER,
    LAG_MAX_MS,
    append,
    broker_image,
    changed,
    followed_from,
    followers,
    new_partition,
)

REPLICAS = (BROKER, 2, 3)
ALONE = changed(replicas=REPLICAS)
ALL_IN_SYNC = changed(replicas=REPLICAS, isr=REPLICAS)
ACTIVE = {each: broker_image(each, epoch=each * 10) for each in REPLICAS}


def leader(
    state: PartitionImage = ALONE, brokers: dict[int, BrokerImage] | None = None, **config: Any
) -> Partition:
    """One that holds a record of an older epoch, and leads since."""
    partition = new_partition(state=changed(partition_epoch=1), brokers=brokers or ACTIVE, **config)
    append(partition, b"old")
    partition.update_state(msgspec.structs.replace(state, leader_epoch=6), now_ms=0)
    append(partition, b"a", acks=ACKS_LEADER)
    return partition


def answer(partition: Partition, error: ErrorCode = ErrorCode.NONE, **changes: Any) -> AlterPartitionResult:
    accepted = AlterPartitionResult(
        ZERO_ID,
        3,
        error,
        leader_id=BROKER,
        leader_epoch=partition.leader_epoch,
        isr=partition.maximal_isr,
        partition_epoch=partition.role.state.partition_epoch + 1,
    )
    return msgspec.structs.replace(accepted, **changes)


def expanding(partition: Partition) -> AlterPartitionItem:
    """A proposal that broker 2 joins."""
    proposal = followed_from(partition, 2, 2, broker_epoch=20).proposal
    assert proposal is not None
    return proposal


# ---- Joining ----


def test_a_replica_that_has_all_that_is_committed_is_proposed_with_the_epochs_of_all_members() -> None:  # B11
    partition = leader()
    assert expanding(partition) == AlterPartitionItem(
        ZERO_ID, 3, 6, 10, (IsrMember(BROKER, 10), IsrMember(2, 20)), LeaderRecoveryState.RECOVERED
    )


def test_a_replica_that_might_join_counts_at_once_and_is_not_in_sync_yet() -> None:  # B2
    partition = leader()
    expanding(partition)
    append(partition, b"b", acks=ACKS_LEADER)
    assert not partition.maybe_increment_high_watermark(10 * LAG_MAX_MS)
    assert (partition.isr, partition.maximal_isr, partition.high_watermark) == ((BROKER,), (BROKER, 2), 2)
    assert repr(partition) == "<Partition orders-3 leader epoch=6 hw=2 leo=3 isr=[1] maximal=[1, 2]>"


def test_there_is_one_proposal_at_a_time() -> None:  # B12
    partition = leader()
    expanding(partition)
    assert followed_from(partition, 3, 2, broker_epoch=30).proposal is None
    assert partition.as_leader().maybe_shrink_isr(now_ms=10 * LAG_MAX_MS) is None


def test_a_replica_that_lacks_something_committed_does_not_join() -> None:  # B11
    assert followed_from(leader(), 2, 1, broker_epoch=20).proposal is None


def test_a_replica_that_has_not_come_to_this_epoch_does_not_join() -> None:  # B11
    partition = leader(min_insync_replicas=2)
    partition.update_state(changed(replicas=REPLICAS, leader_epoch=7, partition_epoch=11), now_ms=0)
    assert (partition.high_watermark, partition.as_leader().epoch_start_offset) == (1, 2)
    assert followed_from(partition, 2, 1, broker_epoch=20).proposal is None
    assert followed_from(partition, 2, 2, broker_epoch=20).proposal is not None


@pytest.mark.parametrize(
    "broker",
    [
        None,
        broker_image(2, epoch=20, is_fenced=True),
        broker_image(2, epoch=20, is_in_controlled_shutdown=True),
        broker_image(2, epoch=19),
    ],
)
def test_a_replica_that_the_metadata_does_not_let_in_is_not_proposed(
    broker: BrokerImage | None,
) -> None:  # B11
    brokers = {**ACTIVE, 2: broker} if broker else {BROKER: ACTIVE[BROKER]}
    assert followed_from(leader(brokers=brokers), 2, 2, broker_epoch=20).proposal is None


def test_a_follower_without_a_broker_epoch_is_not_asked_for_one() -> None:  # B11
    proposal = followed_from(leader(), 2, 2).proposal
    assert proposal is not None
    assert proposal.isr[1] == IsrMember(2, -1)


# ---- Leaving ----


def test_a_replica_that_never_fetched_leaves_after_the_lag_and_not_before() -> None:  # B10
    partition = leader(ALL_IN_SYNC)
    assert partition.as_leader().maybe_shrink_isr(now_ms=LAG_MAX_MS) is None
    proposal = partition.as_leader().maybe_shrink_isr(now_ms=LAG_MAX_MS + 1)
    assert proposal is not None
    assert proposal.isr == (IsrMember(BROKER, 10),)


def test_a_replica_that_leaves_counts_until_the_controller_has_agreed() -> None:  # B2, B12
    partition = leader(ALL_IN_SYNC)
    proposal = partition.as_leader().maybe_shrink_isr(now_ms=LAG_MAX_MS + 1)
    assert proposal is not None
    assert (partition.maximal_isr, partition.high_watermark) == (REPLICAS, 1)
    accepted = answer(partition, isr=(BROKER,))
    assert partition.as_leader().on_alter_partition(proposal, accepted, now_ms=LAG_MAX_MS + 1) is None
    assert (partition.isr, partition.role.state.partition_epoch, partition.high_watermark) == (
        (BROKER,),
        11,
        2,
    )


def test_a_replica_that_has_everything_stays_however_long_ago_it_fetched() -> None:  # B10
    partition = leader(ALL_IN_SYNC)
    for replica_id in (2, 3):
        followed_from(partition, replica_id, 2)
    assert partition.as_leader().maybe_shrink_isr(now_ms=100 * LAG_MAX_MS) is None


def test_a_replica_that_reaches_what_the_leader_had_at_its_last_fetch_keeps_up() -> None:  # B5, B10
    partition = leader(changed(replicas=(BROKER, 2), isr=(BROKER, 2)))
    for round_number in range(1, 5):  # always one record behind
        append(partition, b"b", acks=ACKS_LEADER)
        followed_from(partition, 2, round_number + 1, now_ms=round_number * LAG_MAX_MS)
        assert partition.as_leader().maybe_shrink_isr(now_ms=round_number * LAG_MAX_MS) is None
    (follower,) = followers(partition)
    assert follower.last_caught_up_ms == 3 * LAG_MAX_MS


def test_a_replica_that_does_not_come_nearer_leaves() -> None:  # B5, B10
    partition = leader(changed(replicas=(BROKER, 2), isr=(BROKER, 2)))
    for now_ms in (500, 1000, 1500):
        followed_from(partition, 2, 1, now_ms=now_ms)
    assert partition.as_leader().maybe_shrink_isr(now_ms=1500) is not None


def test_a_leader_that_cannot_read_its_log_any_more_removes_no_follower_for_that() -> None:  # B10
    partition = leader(ALL_IN_SYNC)
    role = partition.as_leader()
    partition.failure = StorageError("cannot read /data: Input/output error")
    assert role.maybe_shrink_isr(now_ms=LAG_MAX_MS + 1) is None
    assert partition.isr == REPLICAS


def test_a_follower_proposes_nothing() -> None:
    partition = new_partition(state=changed(replicas=REPLICAS, isr=REPLICAS, leader_id=2))
    assert isinstance(partition.role, PartitionFollower)
    with pytest.raises(NotLeaderOrFollower):
        partition.as_leader()


# ---- Answers ----

REVERTED = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA]
AWAITING = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
]
RETRIED = [each for each in ErrorCode if each not in (*REVERTED, *AWAITING, ErrorCode.NONE)]


@pytest.mark.parametrize("error", REVERTED)
def test_a_proposal_that_the_controller_turned_down_is_over(error: ErrorCode) -> None:  # B12
    partition = leader()
    proposal = expanding(partition)
    append(partition, b"b", acks=ACKS_LEADER)
    assert (
        partition.as_leader().on_alter_partition(proposal, answer(partition, error), now_ms=2 * LAG_MAX_MS)
        is None
    )
    assert (partition.maximal_isr, partition.pending_isr is not None) == ((BROKER,), False)
    assert partition.high_watermark == 3  # a replica that is not to join is not waited for


@pytest.mark.parametrize("error", AWAITING)
def test_a_proposal_of_a_leader_that_is_behind_stays_until_the_metadata_comes(
    error: ErrorCode,
) -> None:  # B12
    partition = leader()
    proposal = expanding(partition)
    assert partition.as_leader().on_alter_partition(proposal, answer(partition, error), now_ms=0) is None
    assert (partition.maximal_isr, partition.pending_isr is not None) == ((BROKER, 2), True)
    partition.update_state(changed(replicas=REPLICAS, leader_epoch=6, partition_epoch=11), now_ms=0)
    assert (partition.maximal_isr, partition.pending_isr is not None) == ((BROKER,), False)


@pytest.mark.parametrize("error", RETRIED)
def test_after_any_other_error_the_same_is_proposed_again(error: ErrorCode) -> None:  # B12
    partition = leader()
    proposal = expanding(partition)
    assert partition.as_leader().on_alter_partition(proposal, answer(partition, error), now_ms=0) == proposal
    assert partition.maximal_isr == (BROKER, 2)


@pytest.mark.parametrize("error", REVERTED)
def test_a_replica_that_the_controller_does_not_let_go_stays_in_sync_and_may_be_proposed_again(
    error: ErrorCode,
) -> None:  # B2, B12
    partition = leader(ALL_IN_SYNC)
    proposal = partition.as_leader().maybe_shrink_isr(now_ms=LAG_MAX_MS + 1)
    assert proposal is not None
    refused = answer(partition, error)
    assert partition.as_leader().on_alter_partition(proposal, refused, now_ms=LAG_MAX_MS + 1) is None
    assert (partition.isr, partition.maximal_isr, partition.high_watermark) == (REPLICAS, REPLICAS, 1)
    assert partition.as_leader().maybe_shrink_isr(now_ms=LAG_MAX_MS + 2) == proposal


def test_a_replica_that_leaves_counts_while_the_same_is_proposed_again_and_again() -> None:  # B2, B12
    partition = leader(ALL_IN_SYNC)
    proposal = partition.as_leader().maybe_shrink_isr(now_ms=LAG_MAX_MS + 1)
    assert proposal is not None
    for _ in range(3):
        failed = answer(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        assert partition.as_leader().on_alter_partition(proposal, failed, now_ms=LAG_MAX_MS + 1) == proposal
        assert (partition.isr, partition.maximal_isr, partition.high_watermark) == (REPLICAS, REPLICAS, 1)
    partition.as_leader().on_alter_partition(
        proposal, answer(partition, isr=(BROKER,)), now_ms=LAG_MAX_MS + 1
    )
    assert (partition.isr, partition.high_watermark) == ((BROKER,), 2)


def test_an_accepted_proposal_is_the_isr_as_the_controller_says_it() -> None:  # B12
    partition = leader()
    proposal = expanding(partition)
    accepted = answer(partition, isr=(2, BROKER), partition_epoch=15)
    assert partition.as_leader().on_alter_partition(proposal, accepted, now_ms=0) is None
    assert (partition.isr, partition.maximal_isr, partition.role.state.partition_epoch) == (
        (2, BROKER),
        (2, BROKER),
        15,
    )


def test_an_answer_that_changed_nothing_ends_the_proposal() -> None:  # B12
    partition = leader()
    proposal = expanding(partition)
    partition.as_leader().on_alter_partition(
        proposal, answer(partition, isr=(BROKER,), partition_epoch=10), now_ms=0
    )
    assert (partition.isr, partition.pending_isr is not None) == ((BROKER,), False)


@pytest.mark.parametrize("changes", [{"leader_epoch": 7}, {"partition_epoch": 9}])
def test_an_answer_of_another_epoch_is_left_to_the_metadata(changes: dict[str, Any]) -> None:  # B12, B16
    partition = leader()
    proposal = expanding(partition)
    assert partition.as_leader().on_alter_partition(proposal, answer(partition, **changes), now_ms=0) is None
    assert (partition.isr, partition.maximal_isr, partition.role.state.partition_epoch) == (
        (BROKER,),
        (BROKER, 2),
        10,
    )


def test_an_answer_after_newer_metadata_changes_nothing() -> None:  # B12
    partition = leader()
    proposal = expanding(partition)
    late = answer(partition)
    partition.update_state(changed(replicas=REPLICAS, leader_epoch=6, partition_epoch=12), now_ms=0)
    for result in (late, answer(partition, ErrorCode.NETWORK_EXCEPTION)):
        assert partition.as_leader().on_alter_partition(proposal, result, now_ms=0) is None
    assert (partition.isr, partition.role.state.partition_epoch) == ((BROKER,), 12)


def test_metadata_that_is_not_newer_leaves_the_proposal() -> None:  # B2, B16
    """The controller may have accepted it by now, so the replica that joins must go on to count."""
    partition = leader()
    expanding(partition)
    partition.update_state(changed(replicas=REPLICAS, leader_epoch=6), now_ms=0)
    assert partition.maximal_isr == (BROKER, 2)


def test_a_replica_that_leaves_is_proposed_once_until_the_controller_has_answered() -> None:  # B10, B12
    partition = leader(ALL_IN_SYNC)
    assert partition.as_leader().maybe_shrink_isr(now_ms=2 * LAG_MAX_MS) is not None
    assert partition.as_leader().maybe_shrink_isr(now_ms=2 * LAG_MAX_MS) is None
    assert repr(partition) == "<Partition orders-3 leader epoch=6 hw=1 leo=2 isr=[1, 2, 3] maximal=[1, 2, 3]>"


def test_a_leader_that_the_metadata_does_not_know_yet_says_no_epoch_of_its_own() -> None:  # B11
    partition = leader(brokers={each: ACTIVE[each] for each in (2, 3)})
    assert expanding(partition).isr == (IsrMember(BROKER, NO_EPOCH), IsrMember(2, 20))


def test_an_isr_names_its_members_and_those_that_may_be() -> None:  # B2
    partition = leader()
    item = expanding(partition)
    assert repr(IsrState((BROKER,), item)) == "<IsrState [1] maximal=[1, 2] pending>"
    assert repr(IsrState((BROKER,))) == "<IsrState [1] maximal=[1]>"


# ---- Recovering ----


def test_a_leader_elected_uncleanly_says_that_it_has_recovered_until_that_is_known() -> None:  # B41
    state = msgspec.structs.replace(ALONE, leader_recovery_state=LeaderRecoveryState.RECOVERING)
    partition = leader(state)
    proposal = partition.as_leader().maybe_recover()
    assert proposal is not None
    assert (proposal.isr, proposal.leader_recovery_state) == (
        (IsrMember(1, 10),),
        LeaderRecoveryState.RECOVERED,
    )
    assert partition.as_leader().maybe_recover() is None
    still = answer(partition, leader_recovery_state=LeaderRecoveryState.RECOVERING)
    partition.as_leader().on_alter_partition(proposal, still, now_ms=0)
    proposal = partition.as_leader().maybe_recover()
    assert proposal is not None
    partition.as_leader().on_alter_partition(proposal, answer(partition), now_ms=0)
    assert partition.as_leader().maybe_recover() is None
