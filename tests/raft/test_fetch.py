"""What the leader answers to those who follow its log."""

import pytest

from rayka.errors import ErrorCode
from rayka.ids import OffsetAndEpoch
from rayka.protocol.fetch import FetchPartitionResult
from tests.raft.support import Voter


def _found(result: FetchPartitionResult | None) -> FetchPartitionResult:
    assert result is not None
    return result


@pytest.fixture
def voter() -> Voter:
    """Epoch 1 at 0-5, epoch 2 from 5 on; everything below 7 is committed."""
    first = Voter.leading()
    first.quorum.append([b"a", b"b"])
    first.flush()
    second = Voter.leading(first.disk, first.quorum.election)
    second.quorum.append([b"c"])
    second.flush()
    return second


def test_whoever_has_all_and_knows_the_high_watermark_waits(voter: Voter) -> None:  # A32
    assert voter.fetch(7, 2, high_watermark=7) is None
    assert _found(voter.fetch(7, 2, high_watermark=7, may_wait=False)).next_offset == 7


@pytest.mark.parametrize("known", [-1, 5])
def test_a_newer_high_watermark_is_news(voter: Voter, known: int) -> None:  # A32
    result = _found(voter.fetch(7, 2, high_watermark=known))
    assert (result.high_watermark, len(result.records)) == (7, 0)


def test_records_not_yet_committed_are_given_with_the_high_watermark(voter: Voter) -> None:  # A32
    voter.quorum.append([b"d"])
    voter.drain()
    result = _found(voter.fetch(7, 2, high_watermark=7))
    assert (result.next_offset, result.high_watermark) == (8, 7)


def test_from_the_beginning_everything_is_valid(voter: Voter) -> None:  # A30
    result = _found(voter.fetch(0, -1))
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
    voter: Voter, offset: int, last_epoch: int, diverging: OffsetAndEpoch | None
) -> None:  # A30
    result = _found(voter.fetch(offset, last_epoch))
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
def test_the_epoch_is_checked_and_the_answer_says_who_leads(
    voter: Voter, epoch: int, error: ErrorCode
) -> None:  # A28
    result = _found(voter.fetch(7, 2, epoch=epoch))
    assert (result.error_code, result.leader_id, result.leader_epoch) == (error, 3001, 2)


def test_who_does_not_lead_says_so() -> None:  # A28
    result = _found(Voter().fetch(0))
    assert (result.error_code, result.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
