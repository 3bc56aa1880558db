"""What the leader answers to the replicas that follow its log."""

import pytest

from rayka.errors import ErrorCode
from rayka.ids import OffsetAndEpoch
from rayka.protocol.fetch import FetchPartitionResult
from tests.raft.support import ME, Node


def found(result: FetchPartitionResult | None) -> FetchPartitionResult:
    assert result is not None
    return result


@pytest.fixture
def node() -> Node:
    """Epoch 1 at 0-5, epoch 2 from 5 on; everything below 7 is committed."""
    first = Node.leading()
    first.commit(b"a", b"b")
    second = first.restarted()
    second.settle()
    second.commit(b"c")
    return second


def test_a_replica_that_has_all_and_knows_the_high_watermark_waits(node: Node) -> None:  # A32
    assert node.fetch(7, 2, high_watermark=7) is None
    assert found(node.fetch(7, 2, high_watermark=7, may_wait=False)).next_offset == 7


@pytest.mark.parametrize("known", [-1, 5])
def test_a_newer_high_watermark_is_news(node: Node, known: int) -> None:  # A32
    result = found(node.fetch(7, 2, high_watermark=known))
    assert (result.high_watermark, len(result.records)) == (7, 0)


def test_records_not_yet_committed_are_given_with_the_high_watermark(node: Node) -> None:  # A32
    node.quorum.leader_log.append([b"d"])
    node.drain()
    result = found(node.fetch(7, 2, high_watermark=7))
    assert (result.next_offset, result.high_watermark) == (8, 7)


def test_a_fetch_gives_one_batch_however_few_bytes_it_may_have(node: Node) -> None:  # A27
    result = found(node.fetch(3, 1, max_bytes=1))
    assert result.next_offset == 5


def test_from_the_beginning_everything_is_valid(node: Node) -> None:  # A30
    result = found(node.fetch(0, -1))
    assert (result.diverging_epoch, result.next_offset) == (None, 7)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [
        (5, 1, None),
        (7, 2, None),
        (6, 1, OffsetAndEpoch(5, 1)),  # has more of epoch 1 than this log
        (8, 2, OffsetAndEpoch(7, 2)),  # is ahead of this log
        (7, 3, OffsetAndEpoch(7, 2)),  # has an epoch that this log never had
        (3, 0, OffsetAndEpoch(0, 0)),  # knows nothing of this log
    ],
)
def test_a_position_that_is_not_of_this_log_diverges(
    node: Node, offset: int, last_epoch: int, diverging: OffsetAndEpoch | None
) -> None:  # A30
    result = found(node.fetch(offset, last_epoch))
    assert result.diverging_epoch == diverging
    assert diverging is None or not len(result.records)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (1, ErrorCode.FENCED_LEADER_EPOCH),
        (2, ErrorCode.NONE),
        (3, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_the_epoch_is_checked_and_the_answer_names_the_leader(
    node: Node, epoch: int, error: ErrorCode
) -> None:  # A28
    result = found(node.fetch(7, 1, epoch=epoch, may_wait=False))
    assert (result.error_code, result.leader_id, result.leader_epoch) == (error, 3001, 2)


def test_a_node_that_does_not_lead_says_so() -> None:  # A28
    result = found(Node(voters=(ME,)).fetch(0))
    assert (result.error_code, result.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_node_that_shuts_down_is_not_available(node: Node) -> None:  # A28
    node.quorum.shut_down(0)
    assert found(node.fetch(7, 2)).error_code is ErrorCode.BROKER_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("offset", "last_epoch", "given"),
    [(-1, 0, {}), (3, -1, {}), (3, 3, {"epoch": 2}), (3, 1, {"max_wait_ms": -1})],
)
def test_a_fetch_that_makes_no_sense_is_invalid(
    node: Node, offset: int, last_epoch: int, given: dict[str, int]
) -> None:  # A27
    assert found(node.fetch(offset, last_epoch, **given)).error_code is ErrorCode.INVALID_REQUEST


def test_a_fetch_that_waits_for_nothing_is_answered(node: Node) -> None:  # A27
    assert found(node.fetch(3, 1, max_wait_ms=0)).error_code is ErrorCode.NONE


def test_the_cluster_id_is_checked_first(node: Node) -> None:  # A27
    result = found(node.fetch(-1, -1, cluster_id="another"))
    assert result.error_code is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert found(node.fetch(0, 0, cluster_id="")).error_code is ErrorCode.NONE
