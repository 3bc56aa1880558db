"""Placement of the replicas of new partitions on brokers, coordinators and their directories (B47).

A caller may name the brokers. Otherwise brokers are chosen in stripes: the first replica of each partition comes from
the next rack, starting at a random rack, and the other replicas come from the racks after it. Inside a rack brokers
take turns. Unfenced brokers come before fenced ones, the first replica is unfenced, and no broker holds two replicas of
a partition. After a full round racks and brokers are shuffled: otherwise all leads of a failed broker would go to the
same broker.

Topics of users are placed on brokers only. Coordinators hold the first replicas of internal topics, striped in the same
way; brokers hold the others, first the brokers of racks without a replica.

Kafka: `StripedReplicaPlacer`, `ReplicationControlManager.validateManualPartitionAssignment`.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import chain, zip_longest
from random import Random
from typing import NamedTuple, TypeVar
from uuid import UUID

from rayka.config.broker_config import BrokerConfig
from rayka.controller.directory_sizes import DirectorySizes
from rayka.controller.placeable_directories import placeable_directories
from rayka.controller.replica_index import ReplicaIndex
from rayka.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from rayka.metadata.image import BrokerImage, MetadataImage
from rayka.metadata.metadata_records import PartitionRecord

ItemT = TypeVar("ItemT")


class Placement(NamedTuple):
    """The replicas of one partition."""

    # The preferred leader first.
    replicas: tuple[int, ...]
    # One for each replica.
    directories: tuple[UUID, ...]


class ReplicaPlacer:
    """Places the partitions of one request; each placement counts the earlier ones."""

    def __init__(
        self,
        image: MetadataImage,
        random: Random,
        replicas: ReplicaIndex,
        config: BrokerConfig,
        sizes: DirectorySizes,
    ) -> None:
        self._nodes = image.brokers
        # The loads of the placeable directories, by broker; brokers without such a directory are left out.
        self._directories = {
            each.broker_id: sizes.loads(each, ids, replicas.of(each.broker_id).directories)
            for each in image.brokers.values()
            if (ids := placeable_directories(image, config, each))
        }
        usable = [each for each in image.brokers.values() if self._is_usable(each)]
        self._brokers = _Pool([each for each in usable if each.takes_user_partitions], random)
        self._coordinators = _Pool([each for each in usable if each.is_coordinator], random)

    def place(
        self, partition_count: int, replication_factor: int, *, is_internal: bool = False
    ) -> Iterator[Placement]:
        """Chooses the replicas of each partition when the iterator asks for it. Raises InvalidReplicationFactor at once
        if there are not enough brokers.
        """
        pools = (self._coordinators, self._brokers) if is_internal else (self._brokers,)
        _check_factor(replication_factor, pools)
        return (self._place_one(replication_factor, pools) for _ in range(partition_count))

    def place_on(self, brokers: Sequence[int], *, is_internal: bool = False) -> Placement:
        """Places replicas on these brokers, in this order. Raises InvalidReplicaAssignment as `check_brokers` and
        `directory_on` do.
        """
        self.check_brokers(brokers, is_internal=is_internal)
        return Placement(tuple(brokers), tuple(self.directory_on(each) for each in brokers))

    def check_brokers(self, brokers: Sequence[int], *, is_internal: bool = False) -> None:
        """Raises InvalidReplicaAssignment if the brokers are none, not distinct, not registered, or for a topic of
        users coordinators.
        """
        unknown = sorted({each for each in brokers if each not in self._nodes})
        if not brokers or len(set(brokers)) < len(brokers):
            raise InvalidReplicaAssignment(
                f"expected the brokers of one replica or more, each once, found {list(brokers)}"
            )
        if unknown:
            raise InvalidReplicaAssignment(
                f"brokers {unknown} are not registered; expected some of {sorted(self._nodes)}"
            )
        for_users = [each.broker_id for each in self._nodes.values() if each.takes_user_partitions]
        coordinators = sorted({each for each in brokers if each not in for_users})
        if coordinators and not is_internal:
            raise InvalidReplicaAssignment(
                f"{coordinators} are coordinators, which hold internal topics only; expected some of {for_users}"
            )

    def directory_on(self, broker_id: int) -> UUID:
        """Chooses the directory of one more replica on a registered broker, and counts it. Raises
        InvalidReplicaAssignment if no directory of the broker works, or none takes new replicas.
        """
        if not self._nodes[broker_id].online_directories:
            raise InvalidReplicaAssignment(
                f"all data directories of broker {broker_id} have failed; mend its disks or name another broker"
            )
        if broker_id not in self._directories:
            raise InvalidReplicaAssignment(
                f"all data directories of broker {broker_id} that work are cordoned; take one out of its"
                " cordoned.log.dirs or name another broker"
            )
        return self._directories[broker_id].choose()

    def _is_usable(self, broker: BrokerImage) -> bool:
        return not broker.is_in_controlled_shutdown and broker.broker_id in self._directories

    def _place_one(self, replication_factor: int, pools: "Sequence[_Pool]") -> Placement:
        unfenced: list[int] = []
        for pool in pools:
            taken = {self._nodes[each].registration.rack for each in unfenced[:replication_factor]}
            unfenced += pool.unfenced_in_turn(taken)
        fenced = chain.from_iterable(pool.fenced_in_turn() for pool in pools)
        in_turn = list(dict.fromkeys((*unfenced, *fenced)))
        replicas = tuple(in_turn[:replication_factor])
        for pool in pools:
            pool.advance(replicas)
        return Placement(replicas, tuple(self._directories[each].choose() for each in replicas))


class _Pool:
    """Brokers that take turns in holding first replicas, by rack."""

    def __init__(self, brokers: Sequence[BrokerImage], random: Random) -> None:
        self._random = random
        self._first_rack = 0
        self.usable_ids = {each.broker_id for each in brokers}
        self.unfenced_ids = {each.broker_id for each in brokers if not each.is_fenced}
        names = sorted({each.registration.rack for each in brokers})
        racks = [
            _Rack(name, [each for each in brokers if each.registration.rack == name], random)
            for name in names
        ]
        self._racks = _from_random_start(racks, random)

    def unfenced_in_turn(self, taken: Collection[str]) -> Iterator[int]:
        """The unfenced brokers, one of each rack and then the next of each; brokers of racks in `taken` come last."""
        racks = self._racks_in_turn()
        for is_taken in (False, True):
            yield from _striped(
                [each.unfenced_in_turn() for each in racks if (each.name in taken) is is_taken]
            )

    def fenced_in_turn(self) -> Iterator[int]:
        return _striped([each.fenced for each in self._racks_in_turn()])

    def advance(self, chosen: Sequence[int]) -> None:
        """Ends the turn of the first unfenced broker in `chosen`, and of its rack."""
        first = next((each for each in chosen if each in self.unfenced_ids), None)
        if first is None:
            return
        next(rack for rack in self._racks if first in rack.unfenced).advance(self._random)
        self._first_rack = (self._first_rack + 1) % len(self._racks)
        if self._first_rack == 0:
            self._random.shuffle(self._racks)

    def _racks_in_turn(self) -> "list[_Rack]":
        return [*self._racks[self._first_rack :], *self._racks[: self._first_rack]]


class _Rack:
    """The brokers of one rack. The turn moves to the next broker whenever the rack holds a first replica."""

    def __init__(self, name: str, brokers: Sequence[BrokerImage], random: Random) -> None:
        self.name = name
        unfenced = sorted(broker.broker_id for broker in brokers if not broker.is_fenced)
        self.unfenced = _from_random_start(unfenced, random)
        self.fenced = sorted(broker.broker_id for broker in brokers if broker.is_fenced)
        self._turn = 0

    def unfenced_in_turn(self) -> list[int]:
        return [*self.unfenced[self._turn :], *self.unfenced[: self._turn]]

    def advance(self, random: Random) -> None:
        self._turn = (self._turn + 1) % len(self.unfenced)
        if self._turn == 0:
            random.shuffle(self.unfenced)


def new_partition(image: MetadataImage, topic_id: UUID, number: int, placement: Placement) -> PartitionRecord:
    """The record of a new partition: the active replicas are in sync, and the first of them leads.

    Raises InvalidReplicaAssignment if no replica is active.
    """
    isr = tuple(each for each in placement.replicas if image.brokers[each].is_active)
    if not isr:
        raise InvalidReplicaAssignment(
            f"partition {number}: all of brokers {list(placement.replicas)} are fenced or shutting down, so none can "
            "lead; start one of them or name others"
        )
    return PartitionRecord(
        topic_id=topic_id,
        partition=number,
        replicas=placement.replicas,
        directories=placement.directories,
        isr=isr,
        leader_id=isr[0],
    )


def _check_factor(replication_factor: int, pools: Sequence[_Pool]) -> None:
    """Raises InvalidReplicationFactor if too few brokers can hold a replica, or all of them are fenced."""
    usable_count = len(set[int]().union(*(pool.usable_ids for pool in pools)))
    if replication_factor < 1:
        raise InvalidReplicationFactor(f"replication factor: expected 1 or more, found {replication_factor}")
    if replication_factor > usable_count:
        instead = f" or ask for at most {usable_count}" if usable_count else ""
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor} is above the number of brokers that can hold a replica, "
            f"{usable_count} (registered, not shutting down, with a directory that works and is not cordoned); "
            f"start {replication_factor - usable_count} more{instead}"
        )
    if not any(pool.unfenced_ids for pool in pools):
        raise InvalidReplicationFactor(
            f"all {usable_count} brokers are fenced, so none can lead; wait for one to be running"
        )


def check_replica_counts(assignments: Sequence[Sequence[int]], replication_factor: int) -> None:
    """Raises InvalidReplicaAssignment unless each partition has `replication_factor` replicas."""
    for number, brokers in enumerate(assignments):
        if len(brokers) != replication_factor:
            raise InvalidReplicaAssignment(
                f"assignment {number}: expected {replication_factor} replicas as the topic's other partitions have, "
                f"found {list(brokers)}"
            )


def _from_random_start(items: Sequence[ItemT], random: Random) -> list[ItemT]:
    start = random.randrange(len(items)) if items else 0
    return [*items[start:], *items[:start]]


def _striped(racks: Sequence[Sequence[int]]) -> Iterator[int]:
    """One broker of each rack, then the next of each, until none is left."""
    for stripe in zip_longest(*racks):
        yield from (broker_id for broker_id in stripe if broker_id is not None)
