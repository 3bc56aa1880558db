"""The part of an `Admin` that is about load, balance and events: a sync face of `AsyncAdmin`. Rayka's own."""

from collections.abc import Iterable

from rayka.client.admin.admin_arguments import names_of
from rayka.client.admin.admin_face import AdminFace
from rayka.client.admin.admin_load_results import BalancePlan, BalanceStatus, ClusterLoad, EventInfo
from rayka.client.arguments import int_of
from rayka.errors import InvalidArgument
from rayka.protocol.events import EVENTS_MAX, NO_EVENT
from rayka.protocol.load import MOVES_AS_CONFIGURED, MOVES_AT_ONCE_MAX


class LoadAdmin(AdminFace):
    """See the module; its methods are those of `Admin`."""

    def describe_load(self, topics: Iterable[str] | None = None) -> ClusterLoad:
        """How much every broker has to do: bytes and records in and out a second, processor, disk; and the partitions
        that take most of each broker, of these topics or of all.

        Brokers report every `broker.load.report.interval.ms` (5 s) to the active controller, which answers with means
        over up to twelve reports; after a change of controller a broker is unknown until its next report. Each broker
        names up to eight partitions. Raises UnknownTopicOrPartition.
        """
        return self._run(self._brain.describe_load, names_of(topics))

    def balance(self, *, dry_run: bool = False, moves: int | None = None) -> BalancePlan:
        """Plans how replicas and preferred leaders should move so that every broker has its share, and has the cluster
        carry the plan out, `moves` partitions at a time (1 to 100; None: `balancer.moves.max`); with `dry_run` it
        changes nothing.

        Goals in their order: replicas on distinct racks and machines, no disk above 80 %, evenness of bytes, of
        leaders, of traffic. A cluster that is even to within 10 % has an empty plan. Returns when the first moves have
        begun; `describe_balance` says how far it is, and `cancel_balance` ends it. While one is under way that is the
        balance which is returned. The active controller carries it out, and another one takes it up. Internal topics
        stay where they are. Raises InvalidRequest, naming it, while another reassignment is under way; UnavailableError
        when not all brokers have reported their load in time.
        """
        if moves is not None and not 1 <= int_of(moves, "moves") <= MOVES_AT_ONCE_MAX:
            raise InvalidArgument(f"moves: expected 1 to {MOVES_AT_ONCE_MAX}, found {moves}")
        return self._run(self._brain.balance, 0 if dry_run else moves or MOVES_AS_CONFIGURED)

    def describe_balance(self) -> BalanceStatus:
        """How far the balance is that is under way, or what came of the last one."""
        return self._run(self._brain.describe_balance)

    def cancel_balance(self) -> bool:
        """Ends the balance that is under way, whether it was asked for or began by itself: nothing more begins, and
        partitions on their way go back. Returns whether there was one.
        """
        return self._run(self._brain.cancel_balance)

    def events(self, *, since: int | None = None, count: int = EVENTS_MAX) -> list[EventInfo]:
        """What happened to the cluster and what it decided by itself, with causes: the newest `count` events, the
        oldest of them first.

        `since`: the number of an event; only later ones. The cluster keeps the newest 1,000, over changes of the
        active controller and restarts; a cluster of an earlier version of Rayka has none. Where no controller is
        active for 2 s, a broker says what it knows.
        """
        after = NO_EVENT if since is None else int_of(since, "since")
        if after < NO_EVENT:
            raise InvalidArgument(f"since: expected the number of an event, found {since}")
        if not 1 <= int_of(count, "count") <= EVENTS_MAX:
            raise InvalidArgument(f"count: expected 1 to {EVENTS_MAX}, found {count}")
        return self._run(self._brain.events, after, count)
