"""Drains: brokers and coordinators are emptied, for an operator, because fewer are needed, or because their machine
goes (decision 093).

The mark of a drain is in the metadata. At each look the controller finds the marks, plans, and begins moves, until the
brokers hold nothing. So a drain goes on when its caller, the supervisor or the controller ends.

- *An operator's* drain is planned as a whole and refused if a replica finds no place. All its moves begin at once: the
  rate of one broker bounds them (decision 078). It ends with the last replica, or when another caller cancels a move.
- *Scaling's* is planned as a whole likewise, and begins `balancer.moves.max` moves at a time.
- *A machine's* moves what can be copied before the machine goes: replicas first that the fewest others hold, then small
  ones, `balancer.moves.max` at a time, moves of others counted. Disks are filled above 80 % where no disk stays below.
  Other brokers lead at once what they can (decision 073).

Only a request of an operator moves a partition that is being reassigned. A move of a draining machine that another
caller has cancelled does not begin again while this controller is active.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping

from rayka.config.broker_config import BrokerConfig
from rayka.controller import incidents
from rayka.controller.cluster_shapes import ClusterShapes
from rayka.controller.configuration_control import value_on
from rayka.controller.decided_events import DecidedEvents, Decision, EventKind
from rayka.controller.drain_state import Obstacle
from rayka.controller.move_queue import DueMove, MoveCause, still_due
from rayka.controller.placeable_directories import Drain, all_drains, drain_of, is_draining
from rayka.controller.planning.balance_plan import Move
from rayka.controller.planning.replacement_plan import BrokerDrainPlan, ReplicaDeparture, plan_drains
from rayka.controller.reassignment import Reassigning
from rayka.controller.request_context import RequestContext
from rayka.errors import BrokerIdNotRegistered, BrokerNotAvailable, InvalidReplicationFactor, InvalidRequest
from rayka.ids import TopicIdPartition, TopicPartition, node_name, role_of
from rayka.metadata.image import PartitionImage, named_partition
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord, config_record
from rayka.protocol.configs import CORDONED, DRAIN, LEAVING, ResourceType
from rayka.protocol.drains import (
    CancelDrainRequest,
    CancelDrainResponse,
    DescribeDrainsRequest,
    DescribeDrainsResponse,
    DrainBrokerRequest,
    DrainBrokerResponse,
    DrainCause,
    DrainMove,
    DrainStatus,
)
from rayka.protocol.load import DISK_USE_MAX
from rayka.shard.shard import Result, Steps

# So long before its machine goes a broker is stopped.
STOP_BEFORE_MS = 5_000
# What is counted on where the throttle allows more.
BYTES_PER_S_MAX = 100_000_000
_RATE = "reassignment.replication.throttled.rate"
_NAMED_MAX = 3
_ADD_ANOTHER = (
    "add another broker first (one more in the spec, and `rayka start` again while the cluster runs)"
)
_Records = Generator[MetadataRecord | list[MetadataRecord] | None, int, None]


# ---- One look --------------------------------------------------------------------------------------------------------


def go_on_draining(context: RequestContext, config: BrokerConfig, events: DecidedEvents) -> _Records:
    """Looks at all drains: ends those that are over, plans, and begins moves."""
    yield from _end_drains(context, events)
    state, waiting = context.drains, context.moves.waiting[MoveCause.DRAIN]
    drains = [each for each in all_drains(context.image) if not _is_over(context, each)]
    if state.look(drains, context.now_ms):
        waiting.clear()
    yield from _lead_elsewhere(context, drains)
    if drains and not waiting and state.is_plan_due(context.now_ms):
        yield from _plan(context, events, drains)
    yield from _begin(context, config, {each.broker_id: each for each in drains})


def _is_over(context: RequestContext, drain: Drain) -> bool:
    """Whether an operator's drain ends: the broker holds nothing, or another caller has cancelled a move."""
    if drain.cause is not DrainCause.OPERATOR:
        return False
    return not _is_held(context, drain.broker_id) or drain.broker_id in context.drains.declined_brokers()


def _is_held(context: RequestContext, broker_id: int) -> bool:
    return context.replicas.of(broker_id).directories.total() > 0


def _end_drains(context: RequestContext, events: DecidedEvents) -> _Records:
    for drain in all_drains(context.image):
        if _is_over(context, drain):
            is_empty = not _is_held(context, drain.broker_id)
            reason = "it holds no replica any more" if is_empty else "an operator cancelled a move of it"
            yield _mark(drain.broker_id, DRAIN, None)
            yield events.records(Decision(EventKind.DRAIN_ENDED, (node_name(drain.broker_id),), reason))


def _mark(broker_id: int, key: str, value: str | None) -> MetadataRecord:
    return config_record(ResourceType.BROKER, str(broker_id), key, value)


def _lead_elsewhere(
    context: RequestContext, drains: Iterable[Drain]
) -> Iterator[PartitionChangeRecord | None]:
    """Others lead what a broker leads whose machine goes, as far as they can. The mark has had them elected, but the
    controller may have died on the way, and a replica may have come into the ISR since.
    """
    elections = context.elections()
    for drain in drains:
        replicas = context.replicas.of(drain.broker_id)
        for key in replicas.held if drain.cause is DrainCause.MACHINE and replicas.led_count else ():
            is_led = elections.partition(key).leader_id == drain.broker_id
            yield elections.change(key).build() if is_led else None


def _plan(context: RequestContext, events: DecidedEvents, drains: list[Drain]) -> _Records:
    """Plans the moves of all drains that have what a plan needs."""
    state, waits_for = context.drains, ""
    try:
        shapes = ClusterShapes(context)
    except BrokerNotAvailable as error:
        shapes, waits_for = ClusterShapes(context, may_be_silent=True), str(error)
    chosen: list[tuple[Drain, list[TopicPartition]]] = []
    departures: dict[TopicPartition, ReplicaDeparture] = {}
    for rank, drain in enumerate(drains):
        obstacle = waits_for
        if drain.cause is DrainCause.MACHINE:
            # Its deadline waits for no report of others.
            broker = context.image.brokers[drain.broker_id]
            is_known = broker.is_active and context.loads.newest(broker) is not None
            obstacle = "" if is_known else f"{node_name(drain.broker_id)} has not reported what it holds"
        state.set_obstacle(drain.broker_id, Obstacle(obstacle, is_stuck=False))
        if not obstacle:
            leaderless = yield from _find_departures(context, drain, rank, departures)
            chosen.append((drain, leaderless))
    copyable = {each.broker_id: _copyable_bytes(context, each) for each in drains if each.deadline_ms}
    plans = yield from plan_drains(shapes.brokers, shapes.partitions(), departures, copyable)
    waiting = context.moves.waiting[MoveCause.DRAIN]
    for drain, leaderless in chosen:
        plan = plans.by_broker.get(drain.broker_id, BrokerDrainPlan([], []))
        if drain.cause is DrainCause.MACHINE:
            waiting.extend(plan.moves)
            has_news = bool(plan.moves or plan.homeless or plan.late_count)
            if has_news and state.is_first_plan(drain):
                subjects = (node_name(drain.broker_id),)
                yield events.records(Decision(EventKind.DRAIN_MOVES, subjects, _moves_and_stays(plan)))
            continue
        # Scaling gives up a drain that cannot end, so none of its moves begins.
        if drain.cause is not DrainCause.SCALING or not plan.homeless:
            waiting.extend(plan.moves)
        refusal = _refusal(drain.broker_id, plan, plans.left_bytes)
        if not refusal and leaderless and not plan.moves:
            refusal = _leaderless_refusal(drain.broker_id, leaderless)
        state.set_obstacle(drain.broker_id, Obstacle(refusal, is_stuck=bool(refusal)))
    state.on_planned(len(waiting), context.now_ms)


def _find_departures(
    context: RequestContext,
    drain: Drain,
    rank: int,
    found: dict[TopicPartition, ReplicaDeparture],
    *,
    is_request: bool = False,
) -> Generator[None, int, list[TopicPartition]]:
    """Adds the replicas that leave the broker now. Returns the partitions on the broker that have no leader.

    A request finds all replicas; a look finds none of partitions that have no leader, that are reassigned, or whose
    move was cancelled.
    """
    image, is_machine = context.image, drain.cause is DrainCause.MACHINE
    leaderless: list[TopicPartition] = []
    for key in context.replicas.of(drain.broker_id).held:
        yield
        partition = image.partition(key)
        if partition is None or drain.broker_id not in partition.target_replicas:
            continue
        name = TopicPartition(image.topics_by_id[key.topic_id].name, key.partition)
        if not partition.has_leader:
            leaderless.append(name)
        is_left = partition.is_reassigned or context.drains.is_declined(drain.broker_id, key)
        if name in found or (not is_request and (is_left or not partition.has_leader)):
            continue
        other_count = _staying_count(context, partition) if is_machine else 0
        found[name] = ReplicaDeparture(
            drain.broker_id, rank, other_count, is_smallest_first=is_machine, may_fill=is_machine
        )
    return leaderless


def _staying_count(context: RequestContext, partition: PartitionImage) -> int:
    """The number of replicas in sync on machines that stay."""
    brokers = (context.image.brokers.get(each) for each in partition.isr)
    return sum(
        each is not None and each.is_active and not is_draining(context.image, each.broker_id)
        for each in brokers
    )


def _copyable_bytes(context: RequestContext, drain: Drain) -> float:
    """The bytes that can be copied until the broker is stopped, less the bytes that leave it already: as if all went
    through one broker.
    """
    left_ms = max(0, drain.deadline_ms - STOP_BEFORE_MS - context.wall_clock_ms())
    leaving_bytes = sum(
        each.copied_bytes
        for each in context.moves.under_way(MoveCause.DRAIN).values()
        if drain.broker_id in each.before and drain.broker_id not in each.after
    )
    bytes_per_s = min(int(value_on(context, drain.broker_id, _RATE)), BYTES_PER_S_MAX)
    return left_ms * bytes_per_s / 1000 - leaving_bytes


def _begin(
    context: RequestContext, config: BrokerConfig, drains: Mapping[int, Drain]
) -> Iterator[PartitionChangeRecord]:
    """Begins the moves that are still due, as many as may be under way at a time; an operator's are not bounded."""
    image, moves, reassigning = context.image, context.moves, Reassigning(context)
    waiting = moves.waiting[MoveCause.DRAIN]
    led_count = sum(
        partition is not None and partition.has_leader
        for partition in map(image.partition, context.replicas.reassigned if waiting else ())
    )
    held_back: list[Move] = []
    while waiting:
        move = waiting.popleft()
        source = next(
            (drains[each] for each in move.before if each in drains and each not in move.after), None
        )
        due = still_due(image, move)
        if source is None or due is None or due.partition.is_reassigned:
            continue
        is_bounded = source.cause is not DrainCause.OPERATOR
        if is_bounded and max(led_count, moves.copying_count) >= config.balancer_moves_max:
            held_back.append(move)
            continue
        record = reassigning.move(move.topic_partition, move.after)
        if record is not None:
            moves.on_begun(due, MoveCause.DRAIN, is_bounded=is_bounded)
            led_count += 1
            yield record
    waiting.extend(held_back)


# ---- What is said ----------------------------------------------------------------------------------------------------


def _moves_and_stays(plan: BrokerDrainPlan) -> str:
    said = [f"{len(plan.moves):,} replicas with {plan.moved_bytes:,} bytes are moved to other brokers"]
    crowded_count = sum(each.is_crowded for each in plan.homeless)
    for count, why in (
        (plan.late_count, "as copying them takes longer than is left"),
        (len(plan.homeless) - crowded_count, "as no other broker can take them"),
        (crowded_count, "as no other broker has room for them"),
    ):
        said += [f"{count:,} stay, {why}"] if count else []
    return "; ".join(said)


def _refusal(broker_id: int, plan: BrokerDrainPlan, left_bytes: Mapping[int, float]) -> str:
    """Why not all of the broker's replicas can move; empty if they can."""
    return _too_few(broker_id, plan) or _no_room(broker_id, plan, left_bytes)


def _too_few(broker_id: int, plan: BrokerDrainPlan) -> str:
    """Names the topics for which there are not enough other brokers."""
    homeless = [each for each in plan.homeless if not each.is_crowded]
    if not homeless:
        return ""
    factors = {each.topic_partition.topic: each.replica_count for each in homeless}
    able = homeless[-1].able
    named = ", ".join(f"{name} (replication factor {count})" for name, count in factors.items())
    return (
        f"without {role_of(broker_id)} {broker_id} {len(able)} active brokers remain "
        f"({', '.join(map(str, able)) or 'none'}), too few for topic {named}; {_ADD_ANOTHER}, or reassign to fewer "
        "replicas with `rayka partition reassign`"
    )


def _no_room(broker_id: int, plan: BrokerDrainPlan, left_bytes: Mapping[int, float]) -> str:
    if not plan.homeless:
        return ""
    names = [each.topic_partition for each in plan.homeless]
    first = ", ".join(map(repr, names[:_NAMED_MAX])) + ", …" * (len(names) > _NAMED_MAX)
    total_bytes = sum(each.size_bytes for each in plan.homeless)
    able = sorted({node_id for each in plan.homeless for node_id in each.able})
    rooms = ", ".join(
        f"{role_of(each)} {each} may take {max(0, left_bytes[each]) / 1e6:,.1f} MB more" for each in able
    )
    return (
        f"without {role_of(broker_id)} {broker_id} disks would be above {DISK_USE_MAX:.0%}: {len(names):,} of its "
        f"replicas ({first}) with {total_bytes / 1e6:,.1f} MB find no room when the others are moved ({rooms}); "
        f"{_ADD_ANOTHER}, or have fewer records kept with `rayka topic alter TOPIC --config retention.bytes=…`"
    )


def _leaderless_refusal(broker_id: int, partitions: list[TopicPartition]) -> str:
    return (
        f"of the partitions on {role_of(broker_id)} {broker_id} no broker leads {len(partitions):,}, such as "
        f"{min(partitions)!r}: nothing is there to copy from"
    )


# ---- Requests --------------------------------------------------------------------------------------------------------


def drain_broker(
    context: RequestContext, request: DrainBrokerRequest
) -> Steps[MetadataRecord, DrainBrokerResponse]:
    """Begins the drain of a broker, or plans it, as a whole. An operator's cordons the broker, which it stays when it
    is empty.

    Raises BrokerIdNotRegistered; InvalidReplicationFactor that names the topics for which too few brokers remain;
    InvalidRequest where scaling is to empty a broker of partitions without a leader.
    """
    broker_id, brokers = request.broker_id, context.image.brokers
    if broker_id not in brokers:
        listed = ", ".join(map(str, sorted(brokers))) or "none"
        raise BrokerIdNotRegistered(f"there is no broker {broker_id}; the cluster has {listed}")
    drain, departures = Drain(broker_id, request.cause), dict[TopicPartition, ReplicaDeparture]()
    leaderless = yield from _find_departures(context, drain, 0, departures, is_request=True)
    shapes = ClusterShapes(context, may_be_silent=True)
    plans = yield from plan_drains(shapes.brokers, shapes.partitions(), departures, {})
    plan = plans.by_broker.get(broker_id, BrokerDrainPlan([], []))
    too_few = _too_few(broker_id, plan)
    if too_few:
        raise InvalidReplicationFactor(too_few)
    no_room = _no_room(broker_id, plan, plans.left_bytes)
    if no_room:
        return Result((), DrainBrokerResponse(no_room=no_room))
    if request.cause is DrainCause.SCALING and leaderless:
        raise InvalidRequest(_leaderless_refusal(broker_id, leaderless))
    moves = [
        DrainMove(each.topic_partition.topic, each.topic_partition.partition, each.after)
        for each in plan.moves
    ]
    if request.is_dry_run:
        return Result((), DrainBrokerResponse(tuple(moves)))
    if request.cause is DrainCause.SCALING:
        yield _mark(broker_id, LEAVING, "true")
    else:
        if drain_of(context.image, broker_id) is not None:
            moves += _leaving(context, broker_id)
        yield from _drain_at_once(context, broker_id, plan)
    next_offset = yield None
    response = DrainBrokerResponse(tuple(moves), metadata_offset=next_offset)
    return Result((), response, context.timers.look_now(context.now_ms))


def _drain_at_once(context: RequestContext, broker_id: int, plan: BrokerDrainPlan) -> _Records:
    """Marks and cordons the broker, and begins all moves. What is refused is tried again by later looks."""
    own, reassigning = context.image.broker_configs(broker_id), Reassigning(context)
    records: list[MetadataRecord] = []
    if own.get(CORDONED) != "*":
        records.append(_mark(broker_id, CORDONED, "*"))
        records += DecidedEvents(context).records(incidents.cordoned(broker_id, "*"))
    if _is_held(context, broker_id):
        records.append(_mark(broker_id, DRAIN, "true"))
    yield records
    for move in plan.moves:
        key, partition = named_partition(context.image, move.topic_partition)
        record = reassigning.move(move.topic_partition, move.after)
        if record is not None:
            context.moves.on_begun(DueMove(key, move, partition), MoveCause.DRAIN, is_bounded=False)
        yield record


def _leaving(context: RequestContext, broker_id: int) -> Iterator[DrainMove]:
    """The moves off the broker that are under way."""
    for key in _leaving_keys(context, broker_id):
        partition = context.image.partition(key)
        if partition is not None:
            name = context.image.topics_by_id[key.topic_id].name
            yield DrainMove(name, key.partition, partition.target_replicas)


def _leaving_keys(context: RequestContext, broker_id: int) -> Iterator[TopicIdPartition]:
    for key in context.replicas.of(broker_id).held:
        partition = context.image.partition(key)
        if partition is not None and broker_id not in partition.target_replicas:
            yield key


def cancel_drain(
    context: RequestContext, request: CancelDrainRequest
) -> Steps[MetadataRecord, CancelDrainResponse]:
    """Takes back an operator's drain: the mark, the cordon, and the moves under way, where they can be."""
    broker_id, image = request.broker_id, context.image
    drain = drain_of(image, broker_id)
    if drain is None or drain.cause is not DrainCause.OPERATOR:
        return Result((), CancelDrainResponse(is_cancelled=False))
    events, reassigning = DecidedEvents(context), Reassigning(context)
    yield _mark(broker_id, DRAIN, None)
    if image.broker_configs(broker_id).get(CORDONED) == "*":
        yield _mark(broker_id, CORDONED, None)
    yield events.records(Decision(EventKind.DRAIN_ENDED, (node_name(broker_id),), "an operator cancelled it"))
    for key in _leaving_keys(context, broker_id):
        name = TopicPartition(image.topics_by_id[key.topic_id].name, key.partition)
        record = reassigning.move(name, None)
        if record is not None and context.moves.is_under_way(key, MoveCause.DRAIN):
            context.moves.take_back(key)
        yield record
    next_offset = yield None
    return Result((), CancelDrainResponse(True, next_offset), context.timers.look_now(context.now_ms))


def describe_drains(
    context: RequestContext, _: DescribeDrainsRequest
) -> Result[MetadataRecord, DescribeDrainsResponse]:
    """All brokers that are drained, and how far they are."""
    return Result(
        (), DescribeDrainsResponse(tuple(_status(context, each) for each in all_drains(context.image)))
    )


def _status(context: RequestContext, drain: Drain) -> DrainStatus:
    obstacle = context.drains.obstacle(drain.broker_id)
    moving_count = sum(1 for _ in _leaving_keys(context, drain.broker_id))
    replica_count = context.replicas.of(drain.broker_id).directories.total()
    return DrainStatus(*drain, replica_count, moving_count, obstacle.reason, obstacle.is_stuck)
