"""How long node actors have waited for a process: Ray makes an actor only where it is pinned to, and waits for ever
where something else has the resources.
"""

from collections.abc import Collection, Hashable, Mapping

from rayka.actors.ray_records import PendingActor

OVERDUE_S = 30.0  # a machine that is busy takes some 10 s for a process


class PendingTimes:
    """Since when each actor waits, on the same Ray nodes: Ray has its time with one that has come."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[Hashable, float]] = {}

    def __repr__(self) -> str:
        return f"<PendingTimes {self._since}>"

    def overdue(
        self, pending: Mapping[int, PendingActor], ray_node_ids: Collection[str], now_s: float
    ) -> dict[int, float]:
        """Those that wait for too long, and for how many seconds."""
        before, self._since = self._since, {}
        for node_id, actor in pending.items():
            situation = (actor.actor_id, tuple(sorted(ray_node_ids)))
            known, since_s = before.get(node_id, (None, now_s))
            self._since[node_id] = (situation, since_s if known == situation else now_s)
        waits = {node_id: now_s - since_s for node_id, (_, since_s) in self._since.items()}
        return {node_id: wait_s for node_id, wait_s in waits.items() if wait_s >= OVERDUE_S}
