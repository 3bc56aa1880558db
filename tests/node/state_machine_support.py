"""The toy state machine on both kinds of replicated logs, in clusters without faults that tests end the leaders of."""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from rayka.errors import ApiError
from rayka.node.hosting.replicated_shard import ReplicatedShard
from rayka.node.hosting.snapshot_generator import SnapshotGenerator
from rayka.node.quorum.quorum_log import QuorumLog
from rayka.partition.partition import Partition
from rayka.protocol.topics import DeleteTopicsRequest
from rayka.sim.clients.register_clients import shard_on
from rayka.sim.loop import VirtualLoop
from rayka.sim.registers import CHANGES, Change, Registers, registers_type
from rayka.sim.run_options import SimOptions
from rayka.sim.simulation import Quiet, Simulation
from tests.node.log_support import CONFIG, IDS, CounterNode, Counters, until

ResultT = TypeVar("ResultT")
RegistersShard = ReplicatedShard[Registers, Change]


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


# ---- A quorum --------------------------------------------------------------------------------------------------------


class RegistersNode(CounterNode):
    """A replica of the registers on a quorum's log, with snapshots."""

    registers: RegistersShard

    async def start(self) -> None:
        await self.open_log()
        log: QuorumLog[Change] = QuorumLog(self.driver, CHANGES)
        self.registers = ReplicatedShard(self.settings.node_id, log, Registers)
        self.log, self.shard = log, self.registers  # type: ignore[assignment]
        snapshots = SnapshotGenerator(self.settings, self.driver, self.registers, CHANGES)
        self.tasks.start("quorum", self.driver.run())
        self.tasks.start("shard", self.registers.run())
        self.tasks.start("snapshots", snapshots.run())


class OnQuorum(Counters):
    """Registers on the log of a quorum."""

    node_type = RegistersNode
    config = CONFIG.model_copy(update={"metadata_log_max_record_bytes_between_snapshots": 600})

    def __init__(self) -> None:
        super().__init__()
        self._loop = VirtualLoop()

    def run(self, scenario: Coroutine[Any, Any, ResultT]) -> ResultT:
        result: ResultT = self._loop.run_until_complete(scenario)
        return result

    def shards(self) -> dict[int, RegistersShard]:
        nodes = {key: node for key, node in self.nodes.items() if isinstance(node, RegistersNode)}
        return {key: node.registers for key, node in nodes.items()}

    async def restart(self, node_id: int) -> None:
        await self.start(node_id)

    @property
    def snapshot_ends(self) -> list[int]:
        """Where the newest snapshots end."""
        return [self.nodes[each].log.start_offset for each in IDS if each in self.nodes]

    def close(self) -> None:
        self._loop.cancel_all()
        self._loop.close()


# ---- A partition -----------------------------------------------------------------------------------------------------


class OnPartition:
    """Registers on the partition of an internal topic, in a whole cluster."""

    def __init__(self) -> None:
        options = SimOptions(seed=1, faults_per_minute=0, ops_per_second=0.1, registers=1)
        self.simulation = Simulation(options)
        self.simulation.registers.start = lambda: None  # type: ignore[method-assign]
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
        simulation = self.simulation
        await simulation.cluster.format()
        for node_id in simulation.cluster.machines:
            simulation.cluster.start(node_id)
        brokers = simulation.cluster.brokers
        await until(lambda: all(each.is_serving for each in brokers))
        assert brokers[0].broker is not None
        await brokers[0].broker.create_internal_topic(registers_type().topic)

    def shards(self) -> dict[int, RegistersShard]:
        found = {each.node_id: shard_on(each, 0) for each in self.simulation.cluster.brokers}
        return {node_id: shard for node_id, shard in found.items() if shard is not None}

    def partition_on(self, node_id: int) -> Partition:
        """The replica of one broker."""
        broker = self.simulation.cluster.machines[node_id].broker
        assert broker is not None
        assert broker.observed is not None
        (found,) = broker.observed.replicas.partitions
        return found

    def kill(self, node_id: int) -> None:
        self.simulation.cluster.kill(node_id)

    async def delete_topic(self, name: str) -> None:
        """A client asks the active controller."""
        controllers = [each.controller for each in self.simulation.cluster.controllers]
        (leader,) = [each for each in controllers if each is not None and each.is_active]
        await leader.handle(DeleteTopicsRequest((name,)))

    async def restart(self, node_id: int) -> None:
        machine = self.simulation.cluster.machines[node_id]
        self.simulation.cluster.start(node_id)
        await until(lambda: machine.is_serving)

    def close(self) -> None:
        self._quiet.__exit__()
        self.simulation.close()
