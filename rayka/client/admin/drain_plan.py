"""Where the replicas of a broker or coordinator go that is to be emptied. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from rayka.client.admin.admin_results import BrokerDescription, PartitionDescription, TopicDescription
from rayka.client.admin.reported_disks import NO_REPORTS, ReportedDisks
from rayka.errors import BrokerIdNotRegistered, InvalidReplicationFactor, NoDiskRoom
from rayka.ids import Role, TopicPartition, is_internal, role_of
from rayka.protocol.load import DISK_USE_MAX, DiskRoom

Plan = dict[TopicPartition, tuple[int, ...]]
_NAMED_MAX = 3  # partitions in an error
_ADD_ANOTHER = (
    "add another broker first (one more in the spec, and `rayka start` again while the cluster runs)"
)


class Homeless(NamedTuple):
    """A replica that finds no place: `able` may hold such replicas; `is_crowded`: some of these have none of the
    partition, and no room.
    """

    replica_count: int
    size_bytes: int
    able: Sequence[int]
    is_crowded: bool


def drain_plan(
    broker_id: int,
    brokers: Sequence[BrokerDescription],
    topics: Sequence[TopicDescription],
    cordoned: Collection[int] = (),
    disks: ReportedDisks = NO_REPORTS,
) -> Plan:
    """New replicas of each partition that has one on the broker, as `Successors` says. Raises BrokerIdNotRegistered;
    InvalidReplicationFactor naming the topics for which there are not enough brokers; NoDiskRoom.
    """
    known = [each.node_id for each in brokers]
    if broker_id not in known:
        listed = ", ".join(map(str, known)) or "none"
        raise BrokerIdNotRegistered(f"there is no broker {broker_id}; the cluster has {listed}")
    held = [
        (TopicPartition(topic.name, each.partition), target, _size_bytes(topic.name, each, broker_id, disks))
        for topic in topics
        for each in topic.partitions
        if broker_id in (target := target_replicas(each))
    ]
    successors = Successors(broker_id, brokers, cordoned, disks)
    plan: Plan = {}
    homeless: dict[TopicPartition, Homeless] = {}
    for tp, target, size_bytes in sorted(held, key=lambda each: -each[2]):  # the largest find room hardest
        found = successors.place(tp, target, size_bytes)
        if isinstance(found, Homeless):
            homeless[tp] = found
        else:
            plan[tp] = found
    _check_counts(broker_id, {tp: each for tp, each in homeless.items() if not each.is_crowded})
    _check_room(broker_id, homeless, successors)
    return plan


class Successors:
    """Which brokers take over from one that is to be emptied, replica by replica; what each has been given counts.

    Each goes to an active broker that is not cordoned and has none of the partition, whose disks stay below 80 % with
    it, in a rack that has none if there is one, with the fewest replicas by then. Users' partitions go to brokers only,
    internal ones to coordinators before brokers, and the coordinators among their replicas come first.
    """

    def __init__(
        self,
        broker_id: int,
        brokers: Sequence[BrokerDescription],
        closed: Collection[int],
        disks: ReportedDisks,
        *,
        may_fill: bool = False,
    ) -> None:
        """With `may_fill`, where no disk stays below 80 % one takes it that has room at all."""
        self._broker_id = broker_id
        self._nodes = {each.node_id: each for each in brokers}
        self._counts = {
            each.node_id: each.replica_count
            for each in brokers
            if each.state == "active" and each.node_id != broker_id and each.node_id not in closed
        }
        self._preferred = {
            role: [each.node_id for each in brokers if role in each.roles]
            for role in (Role.BROKER, Role.COORDINATOR)
        }
        self._may_fill = may_fill
        self._room = DiskRoom.reported(disks.reports, {each.node_id: each.host for each in brokers})

    def __repr__(self) -> str:
        return f"<Successors of {self._broker_id}: {self._counts}>"

    def place(
        self, topic_partition: TopicPartition, target: Sequence[int], size_bytes: int
    ) -> tuple[int, ...] | Homeless:
        """What the partition's replicas become, which are these now or will be."""
        has_internal = is_internal(topic_partition.topic)
        preferred = self._preferred[Role.COORDINATOR if has_internal else Role.BROKER]
        able = [each for each in self._counts if has_internal or each in preferred]
        others = [each for each in target if each != self._broker_id]
        taken = [self._nodes[each].rack for each in others if each in self._nodes]
        free = [each for each in able if each not in others]
        fitting = [each for each in free if size_bytes < self.room_bytes(each)]
        if not fitting and self._may_fill:
            fitting = [each for each in free if size_bytes < self._room.free_bytes(each)]
        if not fitting:
            return Homeless(len(target), size_bytes, able, is_crowded=bool(free))

        def cost(node_id: int) -> tuple[bool, bool, int, int]:
            is_taken = self._nodes[node_id].rack in taken
            return node_id not in preferred, is_taken, self._counts[node_id], node_id

        chosen = min(fitting, key=cost)
        self._counts[chosen] += 1
        self.expect(chosen, size_bytes)
        replicas = [chosen if each == self._broker_id else each for each in target]
        if has_internal:
            replicas.sort(key=preferred.__contains__, reverse=True)
        return tuple(replicas)

    def expect(self, node_id: int, size_bytes: int) -> None:
        """So much more comes to the broker's disks than it has reported."""
        if node_id in self._nodes:
            self._room.disks[node_id].planned_bytes += size_bytes

    def room_bytes(self, node_id: int) -> float:
        """How much more the broker may be given, before its disks are above 80 % or full."""
        return self._room.left_bytes(node_id)


def target_replicas(partition: PartitionDescription) -> tuple[int, ...]:
    """The replicas that it has, or will have when its reassignment is over."""
    return tuple(each for each in partition.replicas if each not in partition.removing_replicas)


def _size_bytes(topic: str, partition: PartitionDescription, broker_id: int, disks: ReportedDisks) -> int:
    """Of the broker's replica: as the broker says, or as its load report has it."""
    log = partition.log_of(broker_id)
    tp = TopicPartition(topic, partition.partition)
    return disks.replica_bytes(broker_id, tp) if log is None else log.size_bytes


def _check_counts(broker_id: int, homeless: Mapping[TopicPartition, Homeless]) -> None:
    if not homeless:
        return
    factors = {tp.topic: each.replica_count for tp, each in homeless.items()}
    *_, last = homeless.values()
    named = ", ".join(f"{name} (replication factor {count})" for name, count in factors.items())
    raise InvalidReplicationFactor(
        f"without {role_of(broker_id)} {broker_id} {len(last.able)} active brokers remain ({_listed(last.able)}), "
        f"too few for topic {named}; {_ADD_ANOTHER}, or reassign to fewer replicas with `rayka partition reassign`"
    )


def _check_room(broker_id: int, homeless: Mapping[TopicPartition, Homeless], successors: Successors) -> None:
    if not homeless:
        return
    total_bytes = sum(each.size_bytes for each in homeless.values())
    able = sorted({node_id for each in homeless.values() for node_id in each.able})
    rooms = ", ".join(
        f"{role_of(each)} {each} may take {max(0, successors.room_bytes(each)) / 1e6:,.1f} MB more"
        for each in able
    )
    first = ", ".join(map(repr, list(homeless)[:_NAMED_MAX])) + ", …" * (len(homeless) > _NAMED_MAX)
    raise NoDiskRoom(
        f"without {role_of(broker_id)} {broker_id} disks would be above {DISK_USE_MAX:.0%}: {len(homeless):,} of its "
        f"replicas ({first}) with {total_bytes / 1e6:,.1f} MB find no room when the others are moved ({rooms}); "
        f"{_ADD_ANOTHER}, or have fewer records kept with `rayka topic alter TOPIC --config retention.bytes=…`"
    )


def _listed(node_ids: Collection[int]) -> str:
    return ", ".join(str(each) for each in sorted(node_ids)) or "none"
