"""Commits of offsets that come in one turn of the event loop, written together.

A batch of the log costs as much as ten of its records: groups that commit at the same time share one. Invariants: each
caller is answered as if its commit were the only one; a commit is handled before any request to its shard that came
after it; no request waits longer than until the loop's next turn. Kafka: `CoordinatorRuntime`, whose batches of writes
linger for `group.coordinator.append.linger.ms`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rayka.errors import ApiError
from rayka.protocol.groups import OffsetCommitRequest, OffsetCommitResponse
from rayka.protocol.later import Later
from rayka.shard.runtime import STEPS_PER_TURN

_METADATA_CHARS_MAX = 1 << 20  # at most 4 MB of a batch that may have 16
_Answer = Later[OffsetCommitResponse]
_Begin = Callable[[int, tuple[OffsetCommitRequest, ...]], Any]


class _Together:
    """Commits that are to be written together, and their callers. A larger one is alone."""

    def __init__(self) -> None:
        self.requests: list[OffsetCommitRequest] = []
        self.answers: list[_Answer] = []
        self._record_count = 0
        self._metadata_chars = 0

    def add(self, request: OffsetCommitRequest, metadata_chars: int) -> _Answer:
        answer: _Answer = Later()
        self.requests.append(request)
        self.answers.append(answer)
        self._record_count += len(request.partitions)
        self._metadata_chars += metadata_chars
        return answer

    def has_room(self, request: OffsetCommitRequest, metadata_chars: int) -> bool:
        is_short = self._record_count + len(request.partitions) <= STEPS_PER_TURN
        return is_short and self._metadata_chars + metadata_chars <= _METADATA_CHARS_MAX


class JoinedCommits:
    """See the module. `begin` runs commits on a shard: their answers, or a coroutine that waits for them."""

    def __init__(self, begin: _Begin) -> None:
        self._begin = begin
        self._tasks: dict[asyncio.Task[None], None] = {}  # a loop keeps no task alive by itself
        self._open: dict[int, _Together] = {}

    def __repr__(self) -> str:
        return f"<JoinedCommits open={ {number: len(each.requests) for number, each in self._open.items()} }>"

    def commit(self, number: int, request: OffsetCommitRequest) -> Later[OffsetCommitResponse]:
        """The answer of the shard, once it is committed. Ends in what `begin` raises, and in what refuses this commit
        alone.
        """
        together, metadata_chars = self._open.get(number), _metadata_chars(request)
        if together is not None and not together.has_room(request, metadata_chars):
            self.begin_those_of(number)
            together = None
        if together is None:
            if not self._open:
                asyncio.get_running_loop().call_soon(self._begin_all)
            together = self._open[number] = _Together()
        return together.add(request, metadata_chars)

    def begin_those_of(self, number: int) -> None:
        """The shard of this partition has handled all commits that came before, when this returns."""
        together = self._open.pop(number, None)
        if together is not None:
            self._begin_these(number, together)

    def _begin_all(self) -> None:
        for number in list(self._open):
            self.begin_those_of(number)

    def _begin_these(self, number: int, together: _Together) -> None:
        try:
            answering = self._begin(number, tuple(together.requests))
        except Exception as error:  # also one that no code expected: the callers' requests fail with it
            _refuse(together.answers, error)
            return
        if not isinstance(answering, Coroutine):
            _tell(together.answers, answering)
            return
        task = asyncio.get_running_loop().create_task(_answer(answering, together.answers))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)


async def _answer(answering: Coroutine[Any, Any, Any], answers: Sequence[_Answer]) -> None:
    try:
        found = await answering
    except asyncio.CancelledError:  # the process ends: no caller gets an answer
        for answer in answers:
            answer.cancel()
        raise
    except Exception as error:
        _refuse(answers, error)
        return
    _tell(answers, found)


def _tell(answers: Sequence[_Answer], found: Sequence[OffsetCommitResponse | ApiError]) -> None:
    for answer, outcome in zip(answers, found, strict=True):
        answer.end(outcome)


def _refuse(answers: Sequence[_Answer], error: Exception) -> None:
    for answer in answers:
        answer.end(error)


def _metadata_chars(request: OffsetCommitRequest) -> int:
    return sum([len(each.metadata) for each in request.partitions])
