"""When a request of a fetch session may leave, and what its end means (G14)."""

import pytest

from rayka.errors import ErrorCode
from rayka.ids import ZERO_ID
from rayka.protocol.fetch import (
    FIRST_SESSION_EPOCH,
    NO_SESSION,
    FetchOutcome,
    FetchPartition,
    FetchResponse,
    FetchStream,
)

SESSION = 77
IN_SESSION = FetchResponse((), session_id=SESSION)
WITHOUT = FetchResponse((), session_id=NO_SESSION)
LOST = FetchResponse((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


def wanting(stream: FetchStream, offset: int) -> None:
    stream.session.want(FetchPartition(ZERO_ID, 0, offset, 100))


def in_session() -> FetchStream:
    stream = FetchStream()
    wanting(stream, 0)
    number, _ = stream.begin()
    assert stream.on_response(number, IN_SESSION) is FetchOutcome.ANSWERED
    return stream


def begins_anew(stream: FetchStream) -> bool:
    """Whether the next request begins a session, and says everything."""
    _, request = stream.begin()
    return request.session_epoch == FIRST_SESSION_EPOCH and len(request.partitions) == 1


def test_nothing_overtakes_the_request_that_begins_a_session() -> None:  # G14
    stream = FetchStream()
    wanting(stream, 0)
    number, _ = stream.begin()
    assert (stream.may_follow, stream.may_overtake) == (False, False)
    stream.on_response(number, IN_SESSION)
    assert stream.may_follow


def test_a_request_of_a_known_session_is_overtaken_by_a_few() -> None:  # G14
    stream = in_session()
    for _ in range(5):
        assert stream.may_overtake
        stream.begin()
    assert not stream.may_overtake
    assert not stream.may_follow


def test_a_node_without_sessions_is_told_everything_each_time_and_never_overtaken() -> None:  # G14
    stream = FetchStream()
    wanting(stream, 0)
    number, _ = stream.begin()
    stream.on_response(number, WITHOUT)
    assert stream.has_no_sessions
    assert begins_anew(stream)
    assert not stream.may_overtake


def test_a_session_that_the_node_has_dropped_begins_anew_at_once() -> None:  # G14
    stream = in_session()
    number, _ = stream.begin()
    assert stream.on_response(number, LOST) is FetchOutcome.RENEWED
    assert begins_anew(stream)


def test_a_session_that_is_refused_at_its_beginning_is_a_failure():  # G14
    stream = FetchStream()
    wanting(stream, 0)
    number, _ = stream.begin()
    assert stream.on_response(number, LOST) is FetchOutcome.FAILED


def test_a_call_without_answer_ends_the_session():  # G14
    stream = in_session()
    number, _ = stream.begin()
    assert stream.on_failure(number) is FetchOutcome.FAILED
    assert begins_anew(stream)


@pytest.mark.parametrize("is_answered", [True, False])
def test_what_ends_an_overtaken_request_does_not_end_the_session(is_answered: bool):  # G14
    stream = in_session()
    overtaken, _ = stream.begin()
    newest, _ = stream.begin()
    if is_answered:
        refused = FetchResponse((), ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        assert stream.on_response(overtaken, refused) is FetchOutcome.OVERTAKEN
    assert stream.on_response(newest, IN_SESSION) is FetchOutcome.ANSWERED
    assert not begins_anew(stream)


def test_when_an_overtaken_answer_is_lost_the_session_begins_anew_with_the_next():  # G14
    stream = in_session()
    overtaken, _ = stream.begin()
    newest, _ = stream.begin()
    assert stream.on_failure(overtaken) is FetchOutcome.OVERTAKEN
    assert stream.on_response(newest, IN_SESSION) is FetchOutcome.ANSWERED
    assert begins_anew(stream)


def test_a_session_that_began_anew_after_a_lost_answer_goes_on() -> None:  # G14
    stream = in_session()
    overtaken, _ = stream.begin()
    newest, _ = stream.begin()
    stream.on_failure(overtaken)
    stream.on_response(newest, IN_SESSION)
    anew, _ = stream.begin()
    stream.on_response(anew, IN_SESSION)
    assert not begins_anew(stream)


def test_what_does_not_fit_into_one_request_is_said_in_the_next() -> None:  # G14
    stream = FetchStream()
    for partition in range(5):
        stream.session.want(FetchPartition(ZERO_ID, partition, 0, 100))
    said = []
    while not said or stream.session.has_changed:
        number, request = stream.begin(partitions_max=2)
        said.append([each.partition for each in request.partitions])
        stream.on_response(number, IN_SESSION)
    assert said == [[0, 1], [2, 3], [4]]


def test_a_node_without_sessions_is_told_everything_at_once() -> None:  # G14
    stream = FetchStream()
    for partition in range(3):
        stream.session.want(FetchPartition(ZERO_ID, partition, 0, 100))
    number, _ = stream.begin(partitions_max=2)
    stream.on_response(number, WITHOUT)
    _, request = stream.begin(partitions_max=2)
    assert len(request.partitions) == 3
