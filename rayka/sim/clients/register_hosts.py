"""Where the registers are: on which machines and logs, and what these have lost by right."""

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from rayka.ids import TopicPartition
from rayka.node.replicated_shard import ReplicatedShard
from rayka.sim.checks.replica_views import Replication
from rayka.sim.registers import REGISTERS_TOPIC, Registers, registers_type
from rayka.sim.world.machines import Machine, SimCluster

RegistersShard = ReplicatedShard[Registers, Any]


class RegisterHosts(Protocol):
    """What the clients of the registers know of the nodes; the logs have the numbers from 0 on."""

    log_count: int

    @property
    def machines(self) -> Sequence[Machine]:
        """Those that a client asks."""
        ...

    def creation_on(self, machine: Machine) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """What creates the logs, to be run in the machine's process; None when no node runs there. Raises ApiError."""
        ...

    def shard_on(self, machine: Machine, number: int) -> RegistersShard | None:
        """The registers of a log on a machine, active or standing by."""
        ...

    def shards(self, number: int) -> list[RegistersShard]:
        """Those of all machines that serve."""
        ...

    def has_lost(self, number: int) -> bool:
        """Whether records that were acknowledged may be gone, because too many disks are."""
        ...

    def is_usable(self, number: int) -> bool:
        """Not when every replica of the log was lost with its disk."""
        ...


class PartitionHosts:
    """Brokers, with the registers on the partitions of an internal topic."""

    log_count = 2

    def __init__(self, cluster: SimCluster, replication: Replication) -> None:
        self._cluster = cluster
        self._replication = replication

    @property
    def machines(self) -> Sequence[Machine]:
        return self._cluster.brokers

    def creation_on(self, machine: Machine) -> Callable[[], Coroutine[Any, Any, None]] | None:
        topic = registers_type(self.log_count, min(3, self._cluster.options.brokers)).topic
        return None if machine.broker is None else partial(machine.broker.create_internal_topic, topic)

    def shard_on(self, machine: Machine, number: int) -> RegistersShard | None:
        broker = machine.broker
        if broker is None or not machine.is_serving:
            return None
        for shard_key, shard in broker.shards.shards.items():
            if shard_key[1] == number and isinstance(shard.shard, Registers):
                return shard
        return None

    def shards(self, number: int) -> list[RegistersShard]:
        found = (self.shard_on(each, number) for each in self.machines)
        return [each for each in found if each is not None]

    def has_lost(self, number: int) -> bool:
        return self._replication.has_lost(TopicPartition(REGISTERS_TOPIC, number))

    def is_usable(self, number: int) -> bool:
        truth = self._replication.truth_named(TopicPartition(REGISTERS_TOPIC, number))
        state = None if truth is None else self._replication.state_of(truth)
        rotten = self._replication.rotten
        return state is None or state.has_leader or not all(each in rotten for each in state.replicas)
