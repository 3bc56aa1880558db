"""What a consumer asks of one broker, and which results count (G14)."""

from rayka.client.consumer.fetch_plan import NodeFetches
from rayka.client.consumer.fetch_state import FetchTicket
from rayka.ids import NO_EPOCH, ZERO_ID, TopicPartition
from rayka.protocol.fetch import NO_SESSION, FetchPartition, FetchPartitionResult, FetchResponse

ORDERS = TopicPartition("orders", 0)
RESULT = FetchPartitionResult(ZERO_ID, 0)
SESSION = 77


def want(node: NodeFetches, offset: int, *, partition: int = 0, position_version: int = 1) -> FetchTicket:
    ticket = FetchTicket(TopicPartition("orders", partition), position_version, offset, NO_EPOCH)
    node.want(FetchPartition(ZERO_ID, partition, offset, 100), ticket)
    return ticket


def in_session(offset: int = 10) -> NodeFetches:
    """One partition is asked for from this offset."""
    node = NodeFetches(1)
    want(node, offset)
    number, _ = node.begin()
    node.stream.on_response(number, FetchResponse((), session_id=SESSION))
    return node


def test_a_result_counts_only_if_it_answers_what_was_asked_last() -> None:  # G14
    node = in_session()
    held_back, _ = node.begin()
    ticket = want(node, 12)
    assert node.ticket(held_back, RESULT) is None
    number, _ = node.begin()
    assert node.ticket(held_back, RESULT) is None
    assert node.ticket(number, RESULT) == ticket
    assert node.ticket(number + 1, RESULT) == ticket  # nothing new was asked since


def test_of_a_partition_that_was_forgotten_no_result_counts() -> None:  # G14
    node = in_session()
    number, _ = node.begin()
    node.forget((ZERO_ID, 0))
    assert node.ticket(number, RESULT) is None
    assert not node.is_any_wanted


def test_a_seek_to_where_the_partition_is_asked_for_already_needs_no_request() -> None:  # G14
    node = in_session()
    number, _ = node.begin()
    ticket = want(node, 10, position_version=2)
    assert not node.may_send
    assert node.ticket(number, RESULT) == ticket


def test_while_a_request_is_held_back_another_leaves_only_with_news() -> None:  # G14
    node = in_session()
    node.begin()
    assert not node.may_send
    want(node, 12)
    assert node.may_send
    node.begin()
    assert not node.may_send


def test_nothing_is_asked_of_a_broker_that_is_paused_or_of_which_nothing_is_wanted() -> None:  # G14
    node = in_session()
    assert node.may_send
    node.is_paused = True
    assert not node.may_send
    node.is_paused = False
    node.forget((ZERO_ID, 0))
    assert not node.may_send


def test_a_broker_may_hold_back_only_the_request_that_says_the_last_of_what_has_changed() -> None:  # G14
    node, may_wait = NodeFetches(1), []
    for partition in range(1_200):
        want(node, 0, partition=partition)
    for _ in range(4):
        number, request = node.begin()
        may_wait.append((len(request.partitions), node.may_wait(request)))
        node.stream.on_response(number, FetchResponse((), session_id=SESSION))
    assert may_wait == [(500, False), (500, False), (200, True), (0, True)]


def test_a_broker_without_sessions_may_hold_back_every_request_but_the_first() -> None:  # G14
    node, may_wait = NodeFetches(1), []
    want(node, 0)
    for _ in range(2):
        number, request = node.begin()
        may_wait.append(node.may_wait(request))
        node.stream.on_response(number, FetchResponse((), session_id=NO_SESSION))
    assert may_wait == [False, True]
