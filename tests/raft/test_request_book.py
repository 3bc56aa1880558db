"""One request for each node, its timeout, the back-off after a failure, and the settings of all timers."""

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.protocol.quorum_messages import DescribeQuorumRequest
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.quorum_state import RequestBook


@pytest.fixture
def book() -> RequestBook:
    return RequestBook(request_timeout_ms=2_000, retry_backoff_ms=20)


def test_a_node_gets_one_request_at_a_time_until_it_times_out(book: RequestBook) -> None:  # A11
    assert book.ready_ms(1) == 0
    book.on_sent(1, DescribeQuorumRequest(), 100)
    assert (book.ready_ms(1), book.ready_ms(2)) == (2_100, 0)
    with pytest.raises(AssertionError, match="not ready"):
        book.on_sent(1, DescribeQuorumRequest(), 2_099)
    book.on_sent(1, DescribeQuorumRequest(), 2_100)


def test_an_answer_frees_the_node(book: RequestBook) -> None:  # A11
    request = DescribeQuorumRequest()
    book.on_sent(1, request, 100)
    assert book.on_answered(1, request)
    assert book.ready_ms(1) == 0
    assert not book.on_answered(1, request)


def test_an_answer_to_a_request_that_timed_out_is_dropped(book: RequestBook) -> None:  # A36
    first, second = DescribeQuorumRequest(), DescribeQuorumRequest()
    book.on_sent(1, first, 100)
    book.on_sent(1, second, 2_100)
    assert not book.on_answered(1, first)
    assert book.on_answered(1, second)


def test_a_failure_leaves_the_node_alone_for_a_moment(book: RequestBook) -> None:  # A11
    book.back_off(1, 500)
    assert book.ready_ms(1) == 520
    book.on_sent(1, DescribeQuorumRequest(), 520)


def test_the_back_off_doubles_with_each_failure_until_an_answer_is_of_use(book: RequestBook) -> None:  # A11
    now_ms, pauses = 0, []
    for _ in range(7):
        pauses.append(failed(book, now_ms))
        now_ms += 10_000
    assert pauses == [20, 40, 80, 160, 320, 320, 320]
    request = DescribeQuorumRequest()
    book.on_sent(1, request, now_ms)
    book.on_answered(1, request)
    assert failed(book, now_ms) == 20


def failed(book: RequestBook, now_ms: int) -> int:
    """How long node 1 is left alone after one more failure."""
    request = DescribeQuorumRequest()
    book.on_sent(1, request, now_ms)
    book.on_answered(1, request)
    book.back_off(1, now_ms)
    return book.ready_ms(1) - now_ms


def test_another_role_starts_afresh(book: RequestBook) -> None:  # A20, A36
    request = DescribeQuorumRequest()
    book.on_sent(1, request, 100)
    book.back_off(2, 100)
    book.reset()
    assert (book.ready_ms(1), book.ready_ms(2), book.on_answered(1, request)) == (0, 0, False)


def test_the_defaults_are_kafkas() -> None:  # A10, A11, A12, A13, A14
    config = QuorumConfig.of(BrokerConfig())
    assert config == QuorumConfig()
    assert (config.election_timeout_ms, config.fetch_timeout_ms, config.election_backoff_max_ms) == (
        1_000,
        2_000,
        1_000,
    )
    assert (config.request_timeout_ms, config.retry_backoff_ms) == (2_000, 20)
    assert (config.check_quorum_timeout_ms, config.begin_quorum_epoch_interval_ms) == (3_000, 1_000)


def test_every_timeout_and_switch_is_that_of_the_node() -> None:  # A10, A11, A12, A13, A14, A60
    given = BrokerConfig(
        controller_quorum_election_timeout_ms=11,
        controller_quorum_fetch_timeout_ms=2_222,
        controller_quorum_election_backoff_max_ms=33,
        controller_quorum_request_timeout_ms=4_444,
        controller_quorum_retry_backoff_ms=55,
        controller_quorum_auto_join_enable=True,
    )
    assert QuorumConfig.of(given) == QuorumConfig(
        election_timeout_ms=11,
        fetch_timeout_ms=2_222,
        election_backoff_max_ms=33,
        request_timeout_ms=4_444,
        retry_backoff_ms=55,
        auto_join=True,
    )


def test_a_fetch_that_waits_is_back_long_before_a_follower_gives_the_leader_up() -> None:  # A10, A32
    """A quiet leader was deposed again and again when its followers' timeouts were shorter than their waits."""
    config = QuorumConfig.of(BrokerConfig(controller_quorum_fetch_timeout_ms=301))
    assert repr(config.fetch_max_wait_ms) == "150"  # whole milliseconds
