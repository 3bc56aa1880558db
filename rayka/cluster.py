"""A cluster of nodes on Ray: started, found by name, described, stopped.

Starting is level-triggered: what the spec declares is compared with the actors that are there, and what is missing is
made; so a start that was interrupted, or runs twice at the same time, ends at the same cluster. Nothing here is on
the way of records.
"""

import asyncio
from collections.abc import Collection, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from rayka.actors import launch, supervise
from rayka.actors.description import (
    ClusterDescription,
    NodeDescription,
    describe,
    describe_nodes,
    find_leader,
)
from rayka.actors.format_jobs import remove_directories
from rayka.actors.formatting import place_formatted
from rayka.actors.names import (
    NAMESPACE,
    actor_name,
    node_directories,
    running_clusters,
    running_node_ids,
    wanted_node_ids,
)
from rayka.actors.network import RayNetwork
from rayka.actors.on_ray_node import live_ray_nodes, run_on
from rayka.actors.placement import Placement
from rayka.actors.ray_connection import AUTO, connect, connect_or_start
from rayka.actors.ray_records import has_process
from rayka.actors.shell import NodeProcess
from rayka.actors.start_lock import only_start
from rayka.client import io_thread
from rayka.config import ClusterSpec, dotted
from rayka.errors import ClusterExists, ClusterNotFound, ConfigError, UnavailableError
from rayka.ids import Role, role_of
from rayka.protocol.cluster import NodeState

ResultT = TypeVar("ResultT")
START_TIMEOUT_S = 300.0  # the recovery of a large log takes its time
_MAKE_TIMEOUT_S = 90.0
_ANSWER_TIMEOUT_S = 15.0
_SLACK_S = 30.0  # the waits inside end by themselves, with a better message
_POLL_S = 0.05

__all__ = ["Cluster", "ClusterDescription", "NodeDescription", "find"]


class Cluster:
    """A running cluster. `with Cluster.start(...) as cluster:` stops it at the end; its data stays.

    A handle holds no connection of its own: it can be made any number of times, in any process on the same Ray.
    """

    def __init__(self, name: str, ray_address: str) -> None:
        self._name = name
        self._ray_address = ray_address

    def __repr__(self) -> str:
        return f"<Cluster {self._name} ray={self._ray_address}>"

    @classmethod
    def start(
        cls, spec: str | Path | ClusterSpec | None = None, *, replace: Collection[int] = (), **fields: Any
    ) -> Self:
        """Starts the cluster that a spec declares: a file, a `ClusterSpec`, or its fields as keyword arguments.

        Returns when every node is registered and unfenced. Data directories that exist bring back all they hold; they
        are formatted only when the cluster has none anywhere. Nodes in `replace` start again on an empty disk: a broker
        without its records, a controller as an observer, to which `Admin.add_raft_voter` gives a vote (and
        `remove_raft_voter` takes away that of its former self). A cluster that runs already with the same spec is
        returned as it is. Without a Ray, a local one is started that ends with this process.

        Raises ConfigError, ClusterExists (runs with another spec or directory), StorageError (directories are
        missing) and UnavailableError (no Ray at the address given; a node that did not start, with its reason).
        """
        declared = _spec_of(spec, fields)
        cluster = cls(declared.name, connect_or_start(declared.ray.address))
        with only_start(declared.name, START_TIMEOUT_S):
            cluster._start_missing(declared, replace)
        return cluster

    @classmethod
    def connect(cls, name: str = "rayka", *, address: str = AUTO) -> Self:
        """The running cluster of that name. Starts nothing, neither nodes nor Ray.

        Raises ClusterNotFound naming the cluster, the namespace and the Ray address; UnavailableError without a Ray.
        """
        if not isinstance(name, str):  # a name that no cluster can have is no cluster that is not found
            raise TypeError(f"name: expected str, found {type(name).__name__}")
        cluster = cls(name, connect(address))
        cluster._node_ids()
        return cluster

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self._name

    @property
    def ray_address(self) -> str:
        """The address of the Ray that it runs on."""
        return self._ray_address

    def network(self) -> RayNetwork:
        """A new caller to the cluster's nodes, for one client."""
        return RayNetwork(self._name)

    def describe(self) -> ClusterDescription:
        """The nodes and what is in the cluster. Raises ClusterNotFound when the cluster was stopped."""
        return _wait(describe(self.network(), self._ray_address, self._node_ids()), _ANSWER_TIMEOUT_S)

    def stop(self, delete_data: bool = False) -> None:
        """Stops the cluster under control: the supervisor, brokers, then controllers, the active one last; then their
        actors are ended for good. Data stays.

        With `delete_data` the nodes' directories are removed, and all topics and records with them. Raises
        ClusterNotFound when the cluster was stopped already.
        """
        self._node_ids()  # ClusterNotFound
        _wait(supervise.stop(self._name), _ANSWER_TIMEOUT_S)
        handles = {node_id: launch.find(self._name, node_id) for node_id in running_node_ids(self._name)}
        processes = _wait(launch.processes(handles, _ANSWER_TIMEOUT_S), _ANSWER_TIMEOUT_S)
        roles = _roles(handles, processes)
        combined = {each: handles[each] for each in handles if len(roles[each]) > 1}
        _wait(launch.stop_brokers(self._name, combined), launch.STOP_TIMEOUT_S)
        for node_ids in self._stop_order(roles):
            chosen = {node_id: handles[node_id] for node_id in node_ids}
            _wait(launch.stop(self._name, chosen), launch.STOP_TIMEOUT_S)
        for process in processes.values():
            placement = process.placement
            run_on(process.ray_node_id, launch.await_exit, process.pid)
            if delete_data:
                run_on(process.ray_node_id, remove_directories, placement.directories)
        if delete_data and processes:
            _remove_of_the_gone(next(iter(processes.values())).placement.spec, list(handles))
        silent = [actor_name(self._name, node_id) for node_id in handles if node_id not in processes]
        if silent and delete_data:
            raise UnavailableError(
                f"{', '.join(silent)} did not answer and was ended, but its data is still there; "
                "start the cluster again, then stop it with delete_data (`rayka stop --delete-data`)"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ClusterNotFound):  # stopped within the block
            self.stop()

    def _node_ids(self) -> tuple[int, ...]:
        node_ids = running_node_ids(self._name)
        if not node_ids:
            others = ", ".join(running_clusters()) or "none"
            raise ClusterNotFound(
                f"no cluster {self._name!r} on the Ray at {self._ray_address} (namespace {NAMESPACE!r}; running there: "
                f"{others}); start it with `rayka start` or rayka.Cluster.start()"
            )
        return node_ids

    def _stop_order(self, roles: Mapping[int, Collection[Role]]) -> list[list[int]]:
        """Brokers need the controllers to end well; a leader that stops last has nobody to hand over to."""
        brokers = [each for each in roles if Role.CONTROLLER not in roles[each]]
        controllers = [each for each in roles if Role.CONTROLLER in roles[each]]
        leader_id = _wait(find_leader(self.network(), controllers), _ANSWER_TIMEOUT_S)
        return [
            brokers,
            [each for each in controllers if each != leader_id],
            [each for each in controllers if each == leader_id],
        ]

    def _start_missing(self, spec: ClusterSpec, replace: Collection[int]) -> None:
        running = self._refuse_other_spec(spec, replace)
        if not running:  # one whose nodes have all gone would go on with its own spec
            _wait(supervise.stop(self._name), _ANSWER_TIMEOUT_S)
        missing = [node_id for node_id in wanted_node_ids(spec) if node_id not in running]
        chosen = [each for each in missing if each in replace] if running and replace else missing
        placements = place_formatted(spec, chosen, replace, running) if chosen or replace else {}
        self._make(spec, list(placements.values()))

    def _refuse_other_spec(self, spec: ClusterSpec, replace: Collection[int]) -> dict[int, str]:
        """The nodes that run already, under the same spec, and on which Ray node; empty for one that does not say."""
        running = running_node_ids(self._name)
        handles = {node_id: launch.find(self._name, node_id) for node_id in running}
        processes = _wait(launch.processes(handles, _ANSWER_TIMEOUT_S), _ANSWER_TIMEOUT_S)
        for process in processes.values():
            difference = _difference(process.placement.spec, spec)
            if difference:
                raise ClusterExists(
                    f"cluster {self._name!r} runs on the Ray at {self._ray_address} with {difference}; "
                    f"stop it first with `rayka stop --cluster {self._name}`, or choose another name"
                )
        self._end_lost({each: handles[each] for each in running if each in replace and each not in processes})
        replaced = [actor_name(self._name, each) for each in processes if each in replace]
        if replaced:
            raise ConfigError(
                f"replace: {', '.join(replaced)} runs; only a node without an actor, because its machine or disk is "
                f"lost, can be brought back empty: stop the cluster first with `rayka stop --cluster {self._name}`"
            )
        remaining = running_node_ids(self._name)
        return {each: processes[each].ray_node_id if each in processes else "" for each in remaining}

    def _end_lost(self, handles: Mapping[int, Any]) -> None:
        """Ends actors that wait for a Ray node with the label of theirs, which is lost. Raises ConfigError for one that
        has a process and only does not answer.
        """
        for node_id, handle in handles.items():
            if has_process(handle):
                raise ConfigError(
                    f"replace: {actor_name(self._name, node_id)} has a process, though it does not answer, or Ray has "
                    "not noticed yet that its machine is gone; try again in half a minute"
                )
            launch.end(handle)

    def _make(self, spec: ClusterSpec, placements: Collection[Placement]) -> None:
        """Makes the actors, the supervisor last, and waits until all nodes of the cluster run; ends what it made when
        one does not.
        """
        handles: dict[int, Any] = {}
        had_supervisor = supervise.find(self._name) is not None
        try:
            for placement in placements:
                handles[placement.node_id] = launch.create(placement)
            supervisor = supervise.create(spec)
            if placements or not had_supervisor:
                _wait(self._await_running(handles, supervisor), START_TIMEOUT_S)
        except BaseException:
            if not had_supervisor:
                _wait(supervise.stop(self._name), _ANSWER_TIMEOUT_S)
            for handle in handles.values():
                launch.end(handle)
            raise

    async def _await_running(self, made: Mapping[int, Any], supervisor: Any) -> None:
        await launch.await_made(self._name, made, _MAKE_TIMEOUT_S)
        await supervise.await_made(supervisor, _MAKE_TIMEOUT_S)
        network = self.network()
        node_ids = await network.node_ids()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while True:
            nodes = await describe_nodes(network, node_ids)
            _refuse_failed(self._name, nodes)
            if all(node.state == NodeState.RUNNING for node in nodes):
                return
            if loop.time() > deadline:
                states = "; ".join(
                    f"{node.actor_name} is {node.state} {node.detail}".strip() for node in nodes
                )
                raise UnavailableError(
                    f"cluster {self._name!r} was not up in {START_TIMEOUT_S:g} s: {states}"
                )
            await asyncio.sleep(_POLL_S)


def find(name: str) -> Cluster:
    """The handle that clients get for a cluster's name. As `Cluster.connect`."""
    return Cluster.connect(name)


def _roles(node_ids: Collection[int], processes: Mapping[int, NodeProcess]) -> dict[int, tuple[Role, ...]]:
    """What each node does, as the spec says that the actors were made from."""
    declared = {
        each: role for process in processes.values() for each, role in process.placement.spec.roles.items()
    }
    return {each: declared.get(each, (role_of(each),)) for each in node_ids}


def _remove_of_the_gone(spec: ClusterSpec, with_actor: Collection[int]) -> None:
    """Removes the directories of nodes that the spec has but that have no actor any more, wherever they are."""
    gone = [each for each in wanted_node_ids(spec) if each not in with_actor]
    directories = [each for node_id in gone for each in node_directories(spec, node_id)]
    for ray_node_id in live_ray_nodes() if directories else ():
        run_on(ray_node_id, remove_directories, directories)


def _wait(coroutine: Coroutine[Any, Any, ResultT], timeout_s: float) -> ResultT:
    return io_thread.run(coroutine, timeout_s + _SLACK_S)


def _spec_of(spec: str | Path | ClusterSpec | None, fields: Mapping[str, Any]) -> ClusterSpec:
    if spec is None:
        return ClusterSpec.of(fields)
    if fields:
        raise ConfigError(
            f"Cluster.start: either a specification or its fields, found both: {sorted(fields)}"
        )
    return spec if isinstance(spec, ClusterSpec) else ClusterSpec.load(spec)


def _difference(running: ClusterSpec, wanted: ClusterSpec) -> str:
    """The first key in which two specs differ; empty when none. Which Ray to use is not part of the cluster."""
    if running.data_dirs != wanted.data_dirs:
        return f"data_dir {', '.join(running.data_dirs)}, not {', '.join(wanted.data_dirs)}"
    found, expected = _flat(running), _flat(wanted)
    return next(
        (f"{key} {found[key]}, not {expected[key]}" for key in found if found[key] != expected[key]), ""
    )


def _flat(spec: ClusterSpec) -> dict[str, Any]:
    values = spec.model_dump(exclude={"ray", "data_dir", "config"})
    return {**values, **{dotted(key): value for key, value in spec.config.model_dump(mode="json").items()}}


def _refuse_failed(name: str, nodes: Collection[NodeDescription]) -> None:
    failed = [f"{node.actor_name}: {node.detail}" for node in nodes if node.state == NodeState.FAILED]
    if failed:
        raise UnavailableError(f"cluster {name!r} did not start; {'; '.join(failed)}")
