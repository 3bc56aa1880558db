"""The calls of an acknowledgement by all, and nothing else: what Ray alone takes for it.

A leader and two followers as async actors. The leader keeps what it is sent in a list; each follower calls it, is held
back until there is something new, and by its next call says that it has that. No log, no checks, no encoding, no
client. Nothing that pulls over Ray acknowledges sooner.
"""

import asyncio
from typing import Any

from benchmarks.limits import seconds

_FOLLOWERS = (1, 2)
_OPTIONS = {"num_cpus": 0, "max_concurrency": 1000, "enable_task_events": False}


class _Leader:
    def __init__(self) -> None:
        self._records: list[bytes] = []
        self._positions = dict.fromkeys(_FOLLOWERS, 0)
        self._held_back: dict[int, asyncio.Future[None]] = {}
        self._unacknowledged: list[tuple[int, asyncio.Future[None]]] = []

    async def produce(self, record: bytes) -> None:
        self._records.append(record)
        for held_back in self._held_back.values():
            if not held_back.done():
                held_back.set_result(None)
        acknowledged = asyncio.get_running_loop().create_future()
        self._unacknowledged.append((len(self._records), acknowledged))
        await acknowledged

    async def fetch(self, follower_id: int, position: int) -> tuple[int, bytes]:
        self._positions[follower_id] = position
        while self._unacknowledged and self._unacknowledged[0][0] <= min(self._positions.values()):
            self._unacknowledged.pop(0)[1].set_result(None)
        if position == len(self._records):
            held_back = self._held_back[follower_id] = asyncio.get_running_loop().create_future()
            await held_back
        return len(self._records), b"".join(self._records[position:])


class _Follower:
    async def __init__(self, follower_id: int, leader: Any) -> None:  # type: ignore[misc]
        self._following = asyncio.get_running_loop().create_task(self._follow(follower_id, leader))

    async def _follow(self, follower_id: int, leader: Any) -> None:
        position, records = 0, []
        while True:
            position, record = await leader.fetch.remote(follower_id, position)
            records.append(record)

    async def is_made(self) -> bool:
        return True


class BareReplication:
    """The actors, running. Ray must be initialised; `close` ends them."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._leader: Any = ray.remote(_Leader).options(**_OPTIONS).remote()
        self._followers: list[Any] = [
            ray.remote(_Follower).options(**_OPTIONS).remote(each, self._leader) for each in _FOLLOWERS
        ]
        ray.get([each.is_made.remote() for each in self._followers])

    def round_trips(self, size_bytes: int, count: int) -> list[float]:
        """Seconds until both followers have the record, one record after the other."""
        record = bytes(size_bytes)
        return [seconds(lambda: self._ray.get(self._leader.produce.remote(record))) for _ in range(count)]

    def close(self) -> None:
        for each in (*self._followers, self._leader):
            self._ray.kill(each)
