"""The part of an `Admin` that is about load, balance and events: the sync face of `AsyncLoadAdmin`. Rayka's own."""

from collections.abc import Iterable

from rayka.client.admin.admin_arguments import names_of
from rayka.client.admin.admin_face import AdminFace
from rayka.client.admin.admin_load_results import BalancePlan, ClusterLoad, EventInfo
from rayka.client.arguments import int_of
from rayka.protocol.balance import MOVES_AT_ONCE_MAX
from rayka.protocol.events import EVENTS_MAX, NO_EVENT


class LoadAdmin(AdminFace):
    """See the module; its methods are those of `Admin`."""

    def describe_load(self, topics: Iterable[str] | None = None) -> ClusterLoad:
        """How much every broker has to do: bytes and records in and out a second, processor, disk; and the partitions
        that take most of each broker, of these topics or of all.

        Brokers report every `broker.load.report.interval.ms` (5 s) to the active controller, which answers with means
        over up to twelve reports; after a change of controller a broker is unknown until its next report. Each broker
        names up to eight partitions. Raises UnknownTopicOrPartition.
        """
        return self._run(self._brain.load.describe, names_of(topics))

    def balance(self, *, dry_run: bool = False, moves: int = 10) -> BalancePlan:
        """Plans how replicas and preferred leaders should move so that every broker has its share, and begins the first
        `moves` moves of the plan (1 to 100); with `dry_run` it changes nothing.

        Goals in their order: replicas on distinct racks and machines, no disk above 80 %, evenness of bytes, of
        leaders, of traffic. A cluster that is even to within 10 % has an empty plan. `rayka balance` carries out the
        rest of the plan. A new plan counts moved replicas right once their brokers have reported again (5 s). Internal
        topics stay where they are. Raises InvalidRequest, naming it, while any reassignment is under way;
        UnavailableError when not all brokers have reported their load in time.
        """
        if not 1 <= int_of(moves, "moves") <= MOVES_AT_ONCE_MAX:
            raise ValueError(f"moves: expected 1 to {MOVES_AT_ONCE_MAX}, found {moves}")
        return self._run(self._brain.load.balance, 0 if dry_run else moves)

    def events(self, *, since: int | None = None, count: int = EVENTS_MAX) -> list[EventInfo]:
        """What the cluster decided by itself, and why: the newest `count` events, the oldest of them first.

        `since`: the number of an event; only later ones. The cluster keeps the newest 1,000, over changes of the
        active controller and restarts; a cluster of an earlier version of Rayka has none.
        """
        after = NO_EVENT if since is None else int_of(since, "since")
        if after < NO_EVENT:
            raise ValueError(f"since: expected the number of an event, found {since}")
        if not 1 <= int_of(count, "count") <= EVENTS_MAX:
            raise ValueError(f"count: expected 1 to {EVENTS_MAX}, found {count}")
        return self._run(self._brain.load.events, after, count)
