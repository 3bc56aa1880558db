"""For how long a group does not read, commit or beat while one of its members, or its coordinator, is killed.

A pause that goes on when the measurement ends counts up to that end: what never works again is the longest of all.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count, pairwise
from typing import NamedTuple

from benchmarks.group_members import Member, PolledGroup, until
from rayka.client import io_thread
from rayka.client.consumer.group_membership import GroupMetadata
from rayka.errors import ApiError, CoordinatorNotAvailable, error_for
from rayka.ids import NO_NODE
from rayka.ports import Network
from rayka.protocol.groups import FindCoordinatorRequest, GroupHeartbeatRequest

_WAIT_S = 60.0
_PAUSE_S = 0.01
_TIMEOUT_MS = 500


class Pauses(NamedTuple):
    """For how long nothing was read: of the partitions of the member that was killed, and of the others' at most."""

    killed_s: float
    others_s: float


def pauses_around(
    group: PolledGroup, partitions: int, victims: set[int], kill: Callable[[], None], after_s: float
) -> Pauses:
    """Kills the member that has the victims, while records come for all partitions."""
    time.sleep(1.0)
    kill()
    killed_s = time.perf_counter()
    until(lambda: group.shares(partitions), "the others have what the killed member had")
    until(lambda: victims <= {each for at_s, each in group.seen() if at_s > killed_s}, "all are read again")
    time.sleep(after_s)
    seen, ended_s = group.seen(), time.perf_counter()
    first = min(at_s for at_s, each in seen if each in victims and at_s > killed_s + 0.2)
    gaps = [
        max(after - before for before, after in pairwise((*moments, ended_s)))
        for number in range(partitions)
        if number not in victims
        for moments in [[at_s for at_s, each in seen if each == number and at_s > killed_s - 1] or [killed_s]]
    ]
    return Pauses(first - killed_s, max(gaps))


def longest_gaps(
    calls: Sequence[Callable[[], object]], act: Callable[[], None], seconds_long: float
) -> list[float]:
    """For each of the calls, which are made all the time while something happens, the longest time without success."""
    is_over = threading.Event()
    gaps, last_s = [0.0] * len(calls), [time.perf_counter()] * len(calls)

    def repeat(place: int) -> None:
        while not is_over.wait(_PAUSE_S):
            with suppress(Exception):  # Kafka's own error, or ours, until the next coordinator is there
                calls[place]()
                now_s = time.perf_counter()
                gaps[place], last_s[place] = max(gaps[place], now_s - last_s[place]), now_s

    threads = [threading.Thread(target=repeat, args=(place,), daemon=True) for place in range(len(calls))]
    for each in threads:
        each.start()
    time.sleep(1.0)
    act()
    time.sleep(seconds_long)
    is_over.set()
    ended_s = time.perf_counter()
    found = [max(gap, ended_s - last) for gap, last in zip(gaps, last_s, strict=True)]
    for each in threads:
        each.join(_WAIT_S)
    return found


def commits_of(member: Member) -> Callable[[], object]:
    """Commits the next offset of the member, which polls before, or it would have to leave in the end."""
    offsets = count(1)

    def commit() -> None:
        member.poll(0.001)
        member.commit(next(offsets))

    return commit


class Heartbeats:
    """Each call is one more heartbeat of a member. After one that is refused the coordinator is looked for again."""

    def __init__(self, network: Network, group: GroupMetadata) -> None:
        self._network = network
        self._group = group
        self._coordinator_id = NO_NODE

    def __repr__(self) -> str:
        return f"<Heartbeats of {self._group.member_id} at {self._coordinator_id}>"

    def __call__(self) -> None:
        try:
            io_thread.run(self._beat, _WAIT_S)
        except ApiError:
            self._coordinator_id = NO_NODE
            raise

    async def _beat(self) -> None:
        if self._coordinator_id == NO_NODE:
            self._coordinator_id = await self._find()
        group = self._group
        request = GroupHeartbeatRequest(group.group_id, group.generation_id, group.member_id)
        response = await self._network.call(self._coordinator_id, request, _TIMEOUT_MS)
        if response.error_code:
            raise error_for(response.error_code, f"{self!r}")

    async def _find(self) -> int:
        """The first coordinator that a node names."""
        request = FindCoordinatorRequest((self._group.group_id,))
        for node_id in await self._network.node_ids():
            with suppress(ApiError):
                (found,) = (await self._network.call(node_id, request, _TIMEOUT_MS)).coordinators
                if found.node_id != NO_NODE:
                    return found.node_id
        raise CoordinatorNotAvailable(f"no node names the coordinator of {self._group.group_id}")
