"""The sync methods of `Admin` about load, balance and events, which run `AsyncAdmin`. Rayka's own."""

from collections.abc import Iterable

from rayka.client.admin.admin_arguments import names_of
from rayka.client.admin.admin_face import AdminFace
from rayka.client.admin.admin_load_results import (
    BalancePlan,
    BalanceStatus,
    ClusterLoad,
    DrainInfo,
    EventInfo,
)
from rayka.client.arguments import int_of
from rayka.errors import InvalidArgument
from rayka.protocol.events import EVENTS_MAX, NO_EVENT
from rayka.protocol.load import MOVES_AS_CONFIGURED, MOVES_AT_ONCE_MAX


class LoadAdmin(AdminFace):
    """The methods of `Admin` about load, balance and events."""

    def describe_load(self, topics: Iterable[str] | None = None) -> ClusterLoad:
        """Returns the load of every broker (bytes and records in and out a second, processor, disk) and the partitions
        with the most load, of these topics or of all.

        Brokers report every `broker.load.report.interval.ms` (5 s) to the active controller, which answers with means
        over up to twelve reports; after a change of controller the load of a broker is unknown until its next report.
        Each broker names up to eight partitions. Raises UnknownTopicOrPartition.
        """
        return self._run(self._brain.describe_load, names_of(topics))

    def balance(self, *, dry_run: bool = False, moves: int | None = None) -> BalancePlan:
        """Plans moves of replicas and preferred leaders that give every broker its share, and begins the plan.

        `moves` partitions move at a time (1 to 100; None: `balancer.moves.max`). With `dry_run` nothing is changed.
        Goals in their order: replicas on distinct racks and machines, no disk above 80 %, evenness of bytes, of
        leaders, of traffic. A cluster that is even to within 10 % has an empty plan. Internal topics stay where they
        are.

        Returns when the first moves have begun, or the balance that is already under way. The active controller carries
        out the plan, and its successor continues it. `describe_balance` shows the progress, `cancel_balance` ends it.
        Raises InvalidRequest while another reassignment is under way, naming it; UnavailableError when not all brokers
        have reported their load in time.
        """
        if moves is not None and not 1 <= int_of(moves, "moves") <= MOVES_AT_ONCE_MAX:
            raise InvalidArgument(f"moves: expected 1 to {MOVES_AT_ONCE_MAX}, found {moves}")
        return self._run(self._brain.balance, 0 if dry_run else moves or MOVES_AS_CONFIGURED)

    def describe_balance(self) -> BalanceStatus:
        """Returns the progress of the balance under way, or the outcome of the last one."""
        return self._run(self._brain.describe_balance)

    def cancel_balance(self) -> bool:
        """Cancels the balance under way, requested or automatic; returns whether there was one.

        No further move begins, and moves under way are reverted.
        """
        return self._run(self._brain.cancel_balance)

    def describe_drains(self) -> list[DrainInfo]:
        """The brokers and coordinators that are emptied, for whichever cause, and how far each is; a drain that is
        over is not among them.
        """
        return self._run(self._brain.describe_drains)

    def cancel_drain(self, broker_id: int) -> bool:
        """Ends the drain that `drain_broker` began: partitions on their way go back where they can, and the broker
        takes replicas again. Returns whether there was one. Raises BrokerIdNotRegistered.
        """
        return self._run(self._brain.cancel_drain, int_of(broker_id, "node_id"))

    def events(self, *, since: int | None = None, count: int = EVENTS_MAX) -> list[EventInfo]:
        """Returns the newest `count` events, the oldest first: changes of the cluster and its decisions, with causes.

        `since`: the number of an event; only later events are returned. The cluster keeps the newest 1,000 events over
        changes of the active controller and restarts; a cluster of an earlier version of Rayka has none. A broker
        answers when no active controller has answered for 2 s.
        """
        after = NO_EVENT if since is None else int_of(since, "since")
        if after < NO_EVENT:
            raise InvalidArgument(f"since: expected the number of an event, found {since}")
        if not 1 <= int_of(count, "count") <= EVENTS_MAX:
            raise InvalidArgument(f"count: expected 1 to {EVENTS_MAX}, found {count}")
        return self._run(self._brain.events, after, count)
