"""Which requests are under way, one for each node, and when the next may be sent to it (A11).

A request is under way until its response, its failure or the request timeout. After a failure the node is left alone
for the retry back-off, which doubles with each further one: no node calls a dead one a hundred times a second. A change
of role forgets what is under way: its late responses are dropped. Kafka: `RequestManager`, and the reconnect back-off
of its `NetworkClient`.
"""

from typing import NamedTuple

from rayka.errors import InvariantBroken
from rayka.ports import Message, Request

DOUBLINGS_MAX = 4


class _Sent(NamedTuple):
    request: Request[Message]
    deadline_ms: int


class RequestBook:
    """In-flight requests and back-offs by node id."""

    def __init__(self, *, request_timeout_ms: int, retry_backoff_ms: int) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._sent: dict[int, _Sent] = {}
        self._backing_off_until_ms: dict[int, int] = {}
        self._failures: dict[int, int] = {}  # one after another

    def __repr__(self) -> str:
        return f"<RequestBook under_way={list(self._sent)} backing_off={self._backing_off_until_ms}>"

    def ready_ms(self, node_id: int) -> int:
        """From when on the node may be sent something, as far as is known now; 0 or the past: at once."""
        sent = self._sent.get(node_id)
        return sent.deadline_ms if sent is not None else self._backing_off_until_ms.get(node_id, 0)

    def on_sent(self, node_id: int, request: Request[Message], now_ms: int) -> None:
        if self.ready_ms(node_id) > now_ms:
            raise InvariantBroken(f"{self!r}: node {node_id} is not ready")
        if self._backing_off_until_ms.pop(node_id, None) is None:
            self._failures.pop(node_id, None)
        self._sent[node_id] = _Sent(request, now_ms + self._request_timeout_ms)

    def on_answered(self, node_id: int, request: Request[Message]) -> bool:
        """Whether the response is for the request under way; a late one is not."""
        sent = self._sent.get(node_id)
        if sent is None or sent.request is not request:
            return False
        del self._sent[node_id]
        return True

    def back_off(self, node_id: int, now_ms: int) -> None:
        """Leaves the node alone for a moment: it gave no answer, or one that is no use."""
        failures = self._failures.get(node_id, 0)
        self._failures[node_id] = min(failures + 1, DOUBLINGS_MAX)
        self._backing_off_until_ms[node_id] = now_ms + (self._retry_backoff_ms << failures)

    def reset(self) -> None:
        """Forgets everything: what asks next is another role."""
        self._sent.clear()
        self._backing_off_until_ms.clear()
        self._failures.clear()
