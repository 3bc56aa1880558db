"""The toy state machine on both kinds of replicated logs, in clusters without faults that tests end the leaders of."""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from rayka.errors import ApiError
from rayka.partition.partition import Partition
from rayka.protocol.topics import DeleteTopicsRequest
from rayka.sim.clients.register_clients import RegisterHosts, RegistersShard
from rayka.sim.registers import registers_type
from rayka.sim.run_options import SimOptions
from rayka.sim.simulation import Quiet, Simulation
from tests.node.log_support import CONFIG, until
from tests.sim.registers_on_quorum import VOTERS, QuorumRun, RegistersNode

ResultT = TypeVar("ResultT")


class Cluster(Protocol):
    """Three replicas of one log."""

    def run(self, scenario: Coroutine[Any, Any, ResultT]) -> ResultT:
        """On virtual time."""
        ...

    async def start(self) -> None: ...

    def shards(self) -> dict[int, RegistersShard]:
        """By node, of those that live."""
        ...

    def kill(self, node_id: int) -> None: ...

    async def restart(self, node_id: int) -> None: ...

    def close(self) -> None: ...


async def active(cluster: Cluster) -> int:
    """The node whose shard is active, once one is."""

    def found() -> list[int]:
        return [node_id for node_id, shard in cluster.shards().items() if shard.is_active]

    await until(lambda: bool(found()))
    return found()[0]


async def active_shard(cluster: Cluster) -> RegistersShard:
    """The active shard, once there is one."""
    node_id = await active(cluster)
    return cluster.shards()[node_id]


async def ask(cluster: Cluster, request: Any) -> Any:
    """The answer of whichever shard is active; what is not answered is asked again."""
    while True:
        shard = await active_shard(cluster)
        try:
            return await shard.submit(request)
        except ApiError as error:
            if not error.retriable:
                raise


class Simulated:
    """A simulated cluster without faults, whose clients the tests are."""

    def __init__(self, simulation: Simulation | QuorumRun) -> None:
        self.simulation = simulation
        self.hosts: RegisterHosts = simulation.register_hosts
        self._quiet = Quiet()
        self._quiet.__enter__()

    def run(self, scenario: Coroutine[Any, Any, ResultT]) -> ResultT:
        loop, results = self.simulation.loop, list[ResultT]()

        async def main() -> None:
            results.append(await scenario)

        loop.run_until_complete(loop.create_task(main()))
        assert self.simulation.checkers.violation is None, self.simulation.checkers.violation
        return results[0]

    async def start(self) -> None:
        cluster = self.simulation.cluster
        await cluster.format()
        for node_id in cluster.machines:
            cluster.start(node_id)
        await until(lambda: all(each.is_serving for each in self.hosts.machines))

    def shards(self) -> dict[int, RegistersShard]:
        found = {each.node_id: self.hosts.shard_on(each, 0) for each in self.hosts.machines}
        return {node_id: shard for node_id, shard in found.items() if shard is not None}

    def kill(self, node_id: int) -> None:
        self.simulation.cluster.kill(node_id)

    async def restart(self, node_id: int) -> None:
        self.simulation.cluster.start(node_id)
        await until(lambda: self.simulation.cluster.machines[node_id].is_serving)

    def close(self) -> None:
        self._quiet.__exit__()
        self.simulation.close()


class OnQuorum(Simulated):
    """Registers on the log of a quorum, with snapshots."""

    def __init__(self) -> None:
        config = CONFIG.model_dump(exclude_unset=True) | {
            "metadata_log_max_record_bytes_between_snapshots": 600
        }
        super().__init__(QuorumRun(SimOptions(seed=1, faults_per_minute=0, config=config, **VOTERS)))

    @property
    def snapshot_ends(self) -> list[int]:
        """Where the newest snapshots end."""
        nodes = [each.node for each in self.hosts.machines]
        drivers = [each.driver for each in nodes if isinstance(each, RegistersNode)]
        return [each.quorum.log.snapshot_end_offset for each in drivers if each is not None]


class OnPartition(Simulated):
    """Registers on the partition of an internal topic, in a whole cluster."""

    def __init__(self) -> None:
        super().__init__(Simulation(SimOptions(seed=1, faults_per_minute=0, ops_per_second=0.1, registers=1)))

    async def start(self) -> None:
        await super().start()
        broker = self.simulation.cluster.brokers[0].broker
        assert broker is not None
        await broker.create_internal_topic(registers_type().topic)

    def partition_on(self, node_id: int) -> Partition:
        """The replica of one broker."""
        broker = self.simulation.cluster.machines[node_id].broker
        assert broker is not None
        assert broker.observed is not None
        (found,) = broker.observed.replicas.partitions
        return found

    async def delete_topic(self, name: str) -> None:
        """A client asks the active controller."""
        controllers = [each.controller for each in self.simulation.cluster.controllers]
        (leader,) = [each for each in controllers if each is not None and each.is_active]
        await leader.handle(DeleteTopicsRequest((name,)))
