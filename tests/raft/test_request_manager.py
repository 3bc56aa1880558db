"""One request for each node, its timeout, the back-off after a failure, and the settings of all timers."""

import pytest

from rayka.config.broker_config import BrokerConfig
from rayka.protocol.quorum_messages import DescribeQuorumRequest
from rayka.raft.quorum_config import QuorumConfig
from rayka.raft.quorum_state import RequestManager


@pytest.fixture
def requests() -> RequestManager:
    return RequestManager(request_timeout_ms=2_000, retry_backoff_ms=20)


def test_a_node_gets_one_request_at_a_time_until_it_times_out(requests: RequestManager) -> None:  # A11
    assert requests.ready_ms(1) == 0
    requests.on_sent(1, DescribeQuorumRequest(), 100)
    assert (requests.ready_ms(1), requests.ready_ms(2)) == (2_100, 0)
    with pytest.raises(AssertionError, match="not ready"):
        requests.on_sent(1, DescribeQuorumRequest(), 2_099)
    requests.on_sent(1, DescribeQuorumRequest(), 2_100)


def test_an_answer_frees_the_node(requests: RequestManager) -> None:  # A11
    request = DescribeQuorumRequest()
    requests.on_sent(1, request, 100)
    assert requests.on_answered(1, request)
    assert requests.ready_ms(1) == 0
    assert not requests.on_answered(1, request)


def test_an_answer_to_a_request_that_timed_out_is_dropped(requests: RequestManager) -> None:  # A36
    first, second = DescribeQuorumRequest(), DescribeQuorumRequest()
    requests.on_sent(1, first, 100)
    requests.on_sent(1, second, 2_100)
    assert not requests.on_answered(1, first)
    assert requests.on_answered(1, second)


def test_a_failure_leaves_the_node_alone_for_a_moment(requests: RequestManager) -> None:  # A11
    requests.back_off(1, 500)
    assert requests.ready_ms(1) == 520
    requests.on_sent(1, DescribeQuorumRequest(), 520)


def test_the_back_off_doubles_with_each_failure_until_an_answer_is_of_use(
    requests: RequestManager,
) -> None:  # A11
    now_ms, pauses = 0, []
    for _ in range(7):
        pauses.append(failed(requests, now_ms))
        now_ms += 10_000
    assert pauses == [20, 40, 80, 160, 320, 320, 320]
    request = DescribeQuorumRequest()
    requests.on_sent(1, request, now_ms)
    requests.on_answered(1, request)
    assert failed(requests, now_ms) == 20


def failed(requests: RequestManager, now_ms: int) -> int:
    """How long node 1 is left alone after one more failure."""
    request = DescribeQuorumRequest()
    requests.on_sent(1, request, now_ms)
    requests.on_answered(1, request)
    requests.back_off(1, now_ms)
    return requests.ready_ms(1) - now_ms


def test_another_role_starts_afresh(requests: RequestManager) -> None:  # A20, A36
    request = DescribeQuorumRequest()
    requests.on_sent(1, request, 100)
    requests.back_off(2, 100)
    requests.reset()
    assert (requests.ready_ms(1), requests.ready_ms(2), requests.on_answered(1, request)) == (0, 0, False)


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
