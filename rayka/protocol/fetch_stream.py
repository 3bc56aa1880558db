"""The requests of one caller to one node in a fetch session: when one may leave, and what its end means.

The next request leaves when the one before it has ended. While the node holds one back, a request that has something
new to say overtakes it: the node answers only the newest (G14). Followers and consumers share it.

Invariants: nothing follows a request that begins a session before its end; the results of an overtaken request count,
but only the newest request's answer says anything about the session; when an overtaken request's answer is lost, the
node takes its content for known to the caller, so the session begins anew. Kafka has no such thing: there one request
at a time is under way.
"""

from enum import Enum, auto

from rayka.errors import ErrorCode
from rayka.protocol.fetch import FIRST_SESSION_EPOCH, NO_SESSION, FetchResponse
from rayka.protocol.fetch_session import FetchSessionHandler, SessionRequest

_OVERTAKEN_MAX = 4  # requests that the node may still hold back


class Ending(Enum):
    """What the end of a request means for the stream."""

    ANSWERED = auto()  # its results count
    OVERTAKEN = auto()  # it brought nothing, and a later request is under way
    RENEWED = auto()  # the node has dropped the session: the next request begins another, at once
    FAILED = auto()  # the next request begins a session, after a pause


class FetchStream:
    """See the module. The caller puts what it wants into `session`, and sends what `begin` returns."""

    def __init__(self) -> None:
        self.session = FetchSessionHandler()
        self.has_no_sessions = False  # the node keeps none for this caller
        self._number = 0  # of the newest request
        self._in_flight: dict[int, bool] = {}  # request number -> whether it begins a session
        self._has_lost_answer = False

    def __repr__(self) -> str:
        return f"<FetchStream {self.session!r} in_flight={list(self._in_flight)}>"

    @property
    def is_waiting(self) -> bool:
        """Whether the newest request is under way."""
        return self._number in self._in_flight

    @property
    def may_overtake(self) -> bool:
        """Whether a request may leave while another is under way: not before it is known under which id the node keeps
        the session. One that was overtaken is not waited for: its answer may be lost.
        """
        return not any(self._in_flight.values()) and len(self._in_flight) <= _OVERTAKEN_MAX

    @property
    def may_follow(self) -> bool:
        """Whether a request may leave that overtakes none."""
        return not self.is_waiting and not any(self._in_flight.values())

    def begin(self, partitions_max: int | None = None) -> tuple[int, SessionRequest]:
        """The number of the request that leaves now, and its content, for so many partitions at most; for all where the
        node keeps no session, since it then knows nothing of former requests. `on_response` or `on_failure` ends it.
        """
        self._number += 1
        request = self.session.next(None if self.has_no_sessions else partitions_max)
        self._in_flight[self._number] = request.session_epoch == FIRST_SESSION_EPOCH
        return self._number, request

    def on_response(self, number: int, response: FetchResponse) -> Ending:
        """The request of this number was answered."""
        is_first = self._in_flight.pop(number)
        is_newest = number == self._number
        if response.error_code is not ErrorCode.NONE:
            if not is_newest:
                return Ending.OVERTAKEN
            self._begin_session()
            return Ending.FAILED if is_first else Ending.RENEWED
        if is_newest:
            self.session.on_response(response)
            self.has_no_sessions = response.session_id == NO_SESSION
            if self._has_lost_answer:
                self._begin_session()
        return Ending.ANSWERED

    def on_failure(self, number: int) -> Ending:
        """There is no answer. If a later request has overtaken it, the session ends with that one's answer."""
        del self._in_flight[number]
        if number != self._number:
            self._has_lost_answer = True
            return Ending.OVERTAKEN
        self._begin_session()
        return Ending.FAILED

    def _begin_session(self) -> None:
        """The next request begins a session: it names all partitions, and all are answered."""
        self._has_lost_answer = False
        self.session.on_failure()
