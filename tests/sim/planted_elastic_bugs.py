"""Bugs on purpose in what balances and heals, in the form of `planted_bugs`, found while brokers come and go."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import msgspec

from rayka.controller import (
    balance_control,
    balance_run,
    cluster_shapes,
    drain_control,
    heal_control,
    leader_elections,
    partition_change,
    placeable_directories,
    replica_placement,
)
from rayka.controller.balance_run import BalanceRun
from rayka.controller.healing_state import AbsenceClocks
from rayka.controller.move_queue import MoveCause, MoveQueue
from rayka.controller.planning import balance_plan
from rayka.controller.planning.replacement_plan import BrokerDrainPlan
from rayka.node.log_manager import LogManager
from rayka.protocol.drains import DrainCause
from rayka.protocol.load import BalanceState
from rayka.sim import simulation
from rayka.sim.run_options import ElasticPlan, TopicPlan
from rayka.sim.world.faults import FaultKind
from tests.sim.planting import SHORT, PlantedBug, planted

_CONFIG: dict[str, Any] = {
    "controller_quorum_election_timeout_ms": 500,
    "controller_quorum_fetch_timeout_ms": 1_000,
    "controller_quorum_request_timeout_ms": 1_000,
    "controller_quorum_election_backoff_max_ms": 500,
    "broker_session_timeout_ms": 2_000,
    "broker_heartbeat_interval_ms": 500,
    "broker_unavailable_timeout_ms": 3_000,
    "balancer_settle_ms": 500,
    "balancer_moves_max": 2,
    "reassignment_replication_throttled_rate": 1_000,
    "replica_lag_time_max_ms": 2_000,
    "leader_imbalance_check_interval_seconds": 5,
    "log_segment_delete_delay_ms": 1_000,
}
ELASTIC: dict[str, Any] = {
    "voters": 1,
    "brokers": 3,
    "comers": 2,
    "elastic": ElasticPlan(scaling_pause_s=0.5, flap_pause_s=1.5, has_death=True),
    "voter_changes": False,
    "topics": (TopicPlan("data0", 5, 2),),
    "clients": 1,
    "ops_per_second": 1.0,
    "producers": 1,
    "consumers": 1,
    "records_per_second": 10.0,
    "operations_per_minute": 0.0,
    "latency_ms": 1.0,
    "jitter_ms": 1.0,
    "loss": 0.0,
    "fault_kinds": (),
    "faults_per_minute": 0.0,
    "config": _CONFIG,
}
_DRAINS = {"elastic": ElasticPlan(scaling_pause_s=1.0, flap_pause_s=4.0, drain_pause_s=1.0)}
_OFTEN = {"elastic": ElasticPlan(scaling_pause_s=0.5, flap_pause_s=20.0)}
_REPORTS: dict[str, Any] = {"config": _CONFIG | {"broker_load_report_interval_ms": 500}}
_AWAY: dict[str, Any] = {"fault_kinds": (FaultKind.KILL,), "faults_per_minute": 30.0}


def all_of(*plants: Callable[[], AbstractContextManager[None]]) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def plant() -> Any:
        with ExitStack() as stack:
            for each in plants:
                stack.enter_context(each())
            yield

    return plant


def waits_for_no_replica(_: Any) -> Any:
    def completed(partition: Any) -> Any:
        removing = partition.removing_replicas
        isr = tuple(each for each in partition.isr if each not in removing)
        if not isr:
            return partition
        kept = [place for place, each in enumerate(partition.replicas) if each not in removing]
        return msgspec.structs.replace(
            partition,
            replicas=tuple(partition.replicas[each] for each in kept),
            directories=tuple(partition.directories[each] for each in kept),
            isr=isr,
            adding_replicas=(),
            removing_replicas=(),
        )

    return completed


def waits_for_no_broker(original: Any) -> Any:
    return lambda self, brokers, *, timeout_ms, is_alive: original(
        self, brokers, timeout_ms=0, is_alive=is_alive
    )


def goes_on(original: Any) -> Any:
    def end(self: BalanceRun, state: BalanceState, reason: str) -> None:
        waiting = self._moves.waiting[MoveCause.BALANCE]
        moves = list(waiting)
        if state is not BalanceState.CANCELLED:
            original(self, state, reason)
        self._moves.clear(MoveCause.BALANCE)
        waiting.extend(moves)

    return end


def gives_whatever_it_gains(_: Any) -> Any:
    def even_sizes(self: Any) -> Any:
        usable = self._holders.usable
        source, target = (choose(usable, key=lambda each: each.size_bytes) for choose in (max, min))
        for _, number in source.by_size:
            placed = self._holders.placed[number]
            yield
            if self._holders.may_replace(placed, source, target):
                self._replace(placed, source, target, balance_plan.Goal.SIZE)
                return

    return even_sizes


def passes_leads_on(_: Any) -> Any:
    """From each broker to the one with the next id, so that no lead goes straight back."""

    def even_leaders(self: Any) -> Any:
        placed = self._holders.placed[0]
        yield
        leader = placed.replicas[0]
        next_id = min(placed.replicas, key=lambda each: (each <= leader, each))
        self._prefer(placed, self._holders.by_id[next_id], balance_plan.Goal.LEADERS)

    return even_leaders


def is_always_off(_: Any) -> Any:
    return lambda context: balance_run.BalanceReason(("broker-1",), "it is")


def leaves_out_what_is_lost(original: Any) -> Any:
    def plan(*arguments: Any) -> Any:
        moves = yield from original(*arguments)
        return tuple(
            each._replace(after=tuple(broker for broker in each.after if broker in each.before))
            for each in moves
        )

    return plan


def looks_at_no_cordon(_: Any) -> Any:
    return lambda image, config, broker: broker.online_directories


def knows_of_no_drain(_: Any) -> Any:
    return lambda image, broker_id: False


def only_marks(original: Any) -> Any:
    return lambda context, broker_id, plan: original(context, broker_id, BrokerDrainPlan([], []))


def remembers_its_own_drains_only(original: Any) -> Any:
    """The controller that is asked knows of an operator's drain, and no other."""

    def find_departures(context: Any, drain: Any, rank: int, found: Any, *, is_request: bool = False) -> Any:
        asked = context.drains.__dict__.setdefault("asked", {})
        if is_request:
            asked[drain.broker_id] = None
        if is_request or drain.cause is not DrainCause.OPERATOR:
            return (yield from original(context, drain, rank, found, is_request=is_request))
        own: dict[Any, Any] = {}
        leaderless = yield from original(context, drain, rank, own)
        states = [context.image.partition(key) for key in context.replicas.of(drain.broker_id).held]
        if drain.broker_id in asked and not any(each is not None and each.is_reassigned for each in states):
            found.update(list(own.items())[:1])  # so that a drain takes a while
        return leaderless

    return find_departures


def deletes_nothing(_: Any) -> Any:
    async def tidy(self: Any, image: Any) -> None:
        return

    return tidy


ELASTIC_BUGS = [
    PlantedBug(
        "a replica goes before the one in its place is in sync",
        "replica-set",
        planted(partition_change.__dict__, "_with_reassignment_completed", waits_for_no_replica),
        1,
        ELASTIC,
        seconds=SHORT,
    ),
    PlantedBug(
        "healing begins before its time",
        "healed-early",
        planted(AbsenceClocks, "unavailable", waits_for_no_broker),
        2,
        ELASTIC | _AWAY,
    ),
    PlantedBug(
        "healing makes a set of fewer replicas",
        "replica-set",
        planted(heal_control.__dict__, "plan_healing", leaves_out_what_is_lost),
        2,
        ELASTIC | _AWAY,
    ),
    PlantedBug(
        "more moves at a time than are configured",
        "moves-bound",
        planted(MoveQueue, "may_begin", lambda _: lambda self, key, moves_max: True),
        2,
        ELASTIC | _AWAY | {"config": _CONFIG | {"balancer_moves_max": 1}},
    ),
    PlantedBug(
        "a balance goes on after it was cancelled",
        "balance-told",
        planted(BalanceRun, "end", goes_on),
        6,
        ELASTIC | _OFTEN | {"config": _CONFIG | {"balancer_moves_max": 1}},
    ),
    PlantedBug(
        "a move has to gain nothing",
        "ping-pong",
        all_of(
            planted(balance_plan._Planner, "_even_sizes", gives_whatever_it_gains),
            planted(balance_plan.__dict__, "_ROUNDS_MAX", lambda _: 1),
            planted(balance_run.__dict__, "balance_reason", is_always_off),
            planted(balance_run.__dict__, "REPEAT_MS", lambda _: 0),
        ),
        4,
        ELASTIC,
        seconds=SHORT,
    ),
    PlantedBug(
        "leads that are even are passed on",
        "rest",
        all_of(
            planted(balance_plan._Planner, "_even_leaders", passes_leads_on),
            planted(balance_plan.__dict__, "_ROUNDS_MAX", lambda _: 1),
            planted(balance_run.__dict__, "balance_reason", is_always_off),
            planted(balance_run.__dict__, "REPEAT_MS", lambda _: 0),
            planted(simulation.__dict__, "REST_SECONDS_MAX", lambda _: 90),  # a minute of rest is enough
        ),
        4,
        ELASTIC | {"topics": (TopicPlan("data0", 5, 3),)},
        seconds=SHORT,
    ),
    PlantedBug(
        "a balance beside an operator's reassignment",
        "against-reassignment",
        planted(balance_control.__dict__, "other_reassignment", lambda _: lambda context: ""),
        14,
        ELASTIC | {"operations_per_minute": 60.0},
    ),
    PlantedBug(
        "a balance while a broker is away",
        "balance-beside",
        all_of(
            *(
                planted(module.__dict__, "away_brokers", lambda _: lambda context: [])
                for module in (balance_control, balance_run)
            )
        ),
        4,
        ELASTIC | _AWAY | {"config": _CONFIG | {"broker_unavailable_timeout_ms": 20_000}},
    ),
    PlantedBug(
        "a balance refills a drained broker",
        "move-target",
        all_of(
            *(
                planted(module.__dict__, "placeable_directories", looks_at_no_cordon)
                for module in (cluster_shapes, replica_placement, leader_elections, balance_run)
            )
        ),
        5,
        ELASTIC,
    ),
    PlantedBug(
        "a drain forgets its broker",
        "drain-forgotten",
        all_of(
            planted(drain_control.__dict__, "_drain_at_once", only_marks),
            planted(drain_control.__dict__, "_find_departures", remembers_its_own_drains_only),
        ),
        4,
        ELASTIC | _OFTEN | _REPORTS,
        seconds=30.0,
    ),
    PlantedBug(
        "a replica that moved while its broker was away stays on its disk",
        "stale-replica",
        planted(LogManager, "tidy", deletes_nothing),
        2,
        ELASTIC | _AWAY,
    ),
    PlantedBug(
        "a replica is placed on a machine that drains",
        "drain-placed",
        planted(placeable_directories.__dict__, "is_draining", knows_of_no_drain),
        1,
        ELASTIC | _DRAINS,
    ),
    PlantedBug(
        "a broker on a machine that drains goes on leading",
        "drain-lead",
        planted(leader_elections.__dict__, "is_draining", knows_of_no_drain),
        1,
        ELASTIC | _DRAINS,
    ),
]
