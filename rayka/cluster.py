"""A cluster of nodes on Ray: started, found by name, described, stopped.

Starting is level-triggered: what the spec declares is compared with the actors that are there, and what is missing is
made; so a start that was interrupted, or runs twice at the same time, ends at the same cluster. Nothing here is on
the way of records. What only a start, a stop or a removal needs is imported then, so that clients and commands connect
soon.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from rayka import forks
from rayka.actors import node_handles, supervisor_handle
from rayka.actors.cluster_actors import (
    ANSWER_TIMEOUT_S,
    START_TIMEOUT_S,
    ask_ray,
    kept_record,
    processes_of,
    wait_for,
)
from rayka.actors.cluster_description import (
    ClusterDescription,
    NodeDescription,
    describe,
    find_leader,
)
from rayka.actors.names import (
    NAMESPACE,
    actor_name,
    node_directories,
    running_clusters,
    running_node_ids,
)
from rayka.actors.node_handles import only_start
from rayka.actors.ray_connection import AUTO, connect, connect_or_start
from rayka.actors.ray_network import RayNetwork
from rayka.actors.ray_nodes import run_on
from rayka.client.arguments import int_of
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ClusterNotFound, ConfigError, UnavailableError
from rayka.ids import Role, is_combined, role_of
from rayka.options import ClusterFields, Transport

if TYPE_CHECKING:
    from rayka.actors.rolling_restart import RestartStep
    from rayka.actors.shell import NodeProcess
    from rayka.actors.spec_changes import SpecChange
    from rayka.actors.supervisor_handle import ClusterRecord

RESTART_TIMEOUT_S = 300.0

__all__ = ["Cluster", "ClusterDescription", "NodeDescription", "find"]


class Cluster:
    """A running cluster. `with Cluster.start(...) as cluster:` stops at the end the cluster that this call started; its
    data stays. One that ran before, found by `start` or by `connect`, goes on.

    A handle holds no connection of its own: it can be made any number of times, in any process on the same Ray.
    """

    def __init__(self, name: str, ray_address: str) -> None:
        self._name = name
        self._ray_address = ray_address
        self._change: SpecChange | None = None
        # Whether this `start` began the cluster, so that the end of a `with` block stops it.
        self._is_started_here = False

    def __repr__(self) -> str:
        return f"<Cluster {self._name} ray={self._ray_address}>"

    @classmethod
    def start(
        cls,
        spec: str | Path | ClusterSpec | None = None,
        *,
        replace: Collection[int | str] = (),
        force: bool = False,
        on_restarted: "Callable[[RestartStep], object] | None" = None,
        **fields: Unpack[ClusterFields],
    ) -> Self:
        """Starts the cluster that a spec declares: a file, a `ClusterSpec`, or its fields as keyword arguments.

        Fields and defaults: name="rayka", controllers=1, brokers=1, coordinators=0, data_dir="~/.rayka" (or a list),
        ray={"address": "auto"}, config={} (Kafka's keys), resources by role, or `nodes` in place of the three counts.
        Coordinators lead internal partitions, so that heavy traffic of records does not delay groups; without any,
        brokers do.

        Returns when every node is registered and unfenced. Data directories that exist bring back all they hold; they
        are formatted only when the cluster has none anywhere. Nodes in `replace` start again on an empty disk: a broker
        without its records, a controller as an observer, to which `Admin.add_raft_voter` gives a vote (and
        `remove_raft_voter` takes away that of its former self). `"2:/mnt/disk2"` is one directory of broker 2, which
        keeps the others; without being told, a broker starts without a directory that is missing. Without a Ray, a
        local one is started that ends with this process.

        A cluster that runs already with the same spec is returned as it is. One that runs with another gets what
        differs while it serves; `plan_change` says it in advance, `change` afterwards. New brokers are empty, until
        `Admin.alter_partition_reassignments` gives them replicas or new topics do; new coordinators take over their
        share of internal partitions at once; new controllers get their votes one after another. Other settings take
        effect by a restart of the nodes that they concern, one at a time as `restart` does it, `on_restarted` is called
        after each; `force` accepts partitions below `min.insync.replicas` meanwhile. A start that was interrupted is
        finished by the next one. Data directories and roles cannot change, and no node is taken away by what a spec
        leaves out. A node in `replace` has to be lost or failed, or its directories there offline; it is replaced
        while the others run.

        Raises ConfigError, ClusterExists (runs with another directory, other roles or more nodes), StorageError
        (directories are missing) and UnavailableError (no Ray at the address given; a node that did not start, or did
        not come back, with its reason).
        """
        from rayka.actors.cluster_start import ClusterStart
        from rayka.actors.node_placement import cpus_of_nodes

        declared = _spec_of(spec, fields)
        address = connect_or_start(declared.ray.address, cpus_of_nodes=cpus_of_nodes(declared))
        cluster = cls(declared.name, address)
        with only_start(declared.name, START_TIMEOUT_S):
            starting = ClusterStart(cluster, declared, replace)
            starting.execute()
            cluster._is_started_here = not starting.is_running
            if starting.is_running or replace:
                cluster._change = cluster._apply(
                    starting.spec, starting.added, force, on_restarted or _ignore
                )
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

    @property
    def added_brokers(self) -> tuple[int, ...]:
        """The brokers and coordinators that this `start` added to a cluster that ran already. None of the brokers has a
        replica yet.
        """
        added = self._change.added if self._change else ()
        return tuple(each for each in added if role_of(each) is not Role.CONTROLLER)

    @property
    def change(self) -> "SpecChange | None":
        """What this `start` changed of a cluster that ran already; None where none did."""
        return self._change

    def network(self, transport: Transport = "auto") -> RayNetwork:
        """A new caller to the cluster's nodes, for one client; with `ray` it takes no direct lane."""
        return RayNetwork(self._name, for_client=True, transport=transport)

    def describe(self) -> ClusterDescription:
        """The nodes and what is in the cluster. Raises ClusterNotFound when the cluster was stopped."""
        return wait_for(
            partial(describe, self.network(), self._ray_address, self._node_ids()), ANSWER_TIMEOUT_S
        )

    def remove_broker(self, broker_id: int) -> None:
        """Stops a broker or coordinator that holds no replica, for good: it is forgotten, its directories are removed,
        and from then on the cluster's spec does without it. Also one whose machine is lost. Calling it again finishes
        what was interrupted, but for directories that were left when the controller had forgotten the broker.

        `rayka broker drain` moves its replicas first. Raises BrokerIdNotRegistered, InvalidRequest while it holds
        replicas, ConfigError for the last broker, for one that is a controller too, and where the spec's
        `default.replication.factor` needs it; UnavailableError when it is not known to have stopped.
        """
        from rayka.actors.removal import remove_broker

        self._node_ids()  # ClusterNotFound
        with only_start(self._name, START_TIMEOUT_S):
            remove_broker(self, self._record(), broker_id)

    def remove_controllers(self, *node_ids: int) -> None:
        """Takes these controllers out for good, the active one too: their votes one after another, then the nodes
        under control, and their directories. From then on the spec in force does without them. Calling it again
        finishes what was interrupted.

        An odd number has to be left. Raises ConfigError for that and for a node that is not a controller alone;
        UnavailableError when the quorum could not make a change: no vote is taken while those that would be left have
        no majority that is there.
        """
        from rayka.actors.removal import remove_controllers

        self._node_ids()  # ClusterNotFound
        with only_start(self._name, START_TIMEOUT_S):
            remove_controllers(self, self._record(), _ids_of(node_ids))

    def plan_change(
        self, spec: str | Path | ClusterSpec | None = None, **fields: Unpack[ClusterFields]
    ) -> "SpecChange":
        """What `start` would change of this cluster, which runs: settings, nodes that come, votes, and the restarts in
        their order. Raises what it raises before anything is changed.
        """
        from rayka.actors.cluster_start import ClusterStart
        from rayka.actors.spec_changes import SpecUpdate

        starting = ClusterStart(self, _spec_of(spec, fields), ())
        return SpecUpdate(self, starting.record, starting.processes, starting.spec).plan()

    def plan_restart(self, *node_ids: int) -> "tuple[RestartStep, ...]":
        """What `restart` would do, in its order. Raises what that raises before the first node is stopped."""
        from rayka.actors.rolling_restart import RollingRestart

        return RollingRestart(self, RESTART_TIMEOUT_S).plan(_ids_of(node_ids))

    def restart(
        self,
        *node_ids: int,
        timeout_s: float = RESTART_TIMEOUT_S,
        force: bool = False,
        on_restarted: "Callable[[RestartStep], object] | None" = None,
    ) -> "tuple[RestartStep, ...]":
        """Restarts these nodes, or all where none is named, one after another while the others serve: new code and a
        new process, the same data. Each hands over what it leads, and is waited for until it runs, its replicas are in
        sync again and, of a controller, it has the metadata; `on_restarted` is then called with its step. Returns the
        steps. Brokers come first, the active controller last.

        Raises ConfigError for a node that the cluster does not have; UnavailableError before anything is stopped when
        another node is away, or, without `force`, a partition would have fewer replicas in sync than
        `min.insync.replicas`; and when a node has not caught up `timeout_s` after its stop: then the rest is left as it
        is. A node is made again by the spec in force.
        """
        from rayka.actors.rolling_restart import RollingRestart, refuse_below_min_isr

        with only_start(self._name, START_TIMEOUT_S):
            record = kept_record(self._name)
            restarting = RollingRestart(self, timeout_s, record.spec if record else None)
            steps = restarting.plan(_ids_of(node_ids))
            if not force:
                refuse_below_min_isr(steps)
            restarting.execute(steps, on_restarted or _ignore)
        return steps

    def stop(self, delete_data: bool = False) -> None:
        """Stops the cluster under control: the supervisor, brokers and coordinators, then controllers, the active one
        last; then their actors are ended for good. Data stays, and so do the logs of the last runs, beside it.

        With `delete_data` the nodes' directories are removed, and all topics and records with them. Raises
        ClusterNotFound when the cluster was stopped already.
        """
        from rayka.actors.cluster_start import made_from
        from rayka.actors.formatting import remove_directories
        from rayka.actors.node_logs import keep_logs
        from rayka.actors.node_placement import log_places
        from rayka.actors.scaling.rooms import drop_all

        self._node_ids()  # ClusterNotFound
        kept = None
        with suppress(UnavailableError):  # it may be away; a cluster can be stopped all the same
            kept = kept_record(self._name)
        wait_for(partial(supervisor_handle.stop, self._name), ANSWER_TIMEOUT_S)
        ask_ray(drop_all, self._name)
        unplaced = ask_ray(node_handles.end_unplaced, self._name)
        handles, processes = processes_of(self._name, besides=unplaced)
        roles = _roles(handles, processes)
        combined = {each: handles[each] for each in handles if is_combined(roles[each])}
        wait_for(partial(node_handles.stop_brokers, self._name, combined), node_handles.STOP_TIMEOUT_S)
        for node_ids in self._stop_order(roles):
            chosen = {node_id: handles[node_id] for node_id in node_ids}
            wait_for(partial(node_handles.stop, self._name, chosen), node_handles.STOP_TIMEOUT_S)
        for process in processes.values():
            run_on(process.ray_node_id, node_handles.await_exit, process.pid)
        if not delete_data:
            keep_logs(log_places(self._name, [each.placement for each in processes.values()]))
        for process in processes.values():
            placement = process.placement
            if delete_data:
                run_on(process.ray_node_id, remove_directories, placement.directories)
        spec = kept.spec if kept else made_from(processes)
        if delete_data and spec:
            _remove_of_the_gone(spec, list(handles))
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
        # In a forked child the cluster is the parent's to stop.
        if not self._is_started_here or forks.is_cut_off():
            return
        with suppress(ClusterNotFound):  # stopped within the block
            self.stop()

    def _record(self) -> "ClusterRecord":
        """What the supervisor keeps. Raises UnavailableError where there is none."""
        record = kept_record(self._name)
        if record is None:
            raise UnavailableError(
                f"cluster {self._name!r} has no supervisor, as after a start or stop that was interrupted; start it "
                "again first"
            )
        return record

    def _apply(
        self,
        spec: ClusterSpec,
        added: tuple[int, ...],
        force: bool,
        on_restarted: "Callable[[RestartStep], object]",
    ) -> "SpecChange":
        """Brings into force what of the spec is not yet; the nodes that were `added` are there."""
        from rayka.actors.spec_changes import SpecUpdate

        _, processes = processes_of(self._name)
        applying = SpecUpdate(self, kept_record(self._name), processes, spec)
        change = applying.plan(added)
        applying.execute(change, force=force, on_restarted=on_restarted)
        return change

    def _node_ids(self) -> tuple[int, ...]:
        forks.refuse()
        node_ids = ask_ray(running_node_ids, self._name)
        if not node_ids:
            others = ", ".join(ask_ray(running_clusters)) or "none"
            raise ClusterNotFound(
                f"no cluster {self._name!r} on the Ray at {self._ray_address} (namespace {NAMESPACE!r}; running there: "
                f"{others}); start it with `rayka start` or rayka.Cluster.start()"
            )
        return node_ids

    def _stop_order(self, roles: Mapping[int, Collection[Role]]) -> list[list[int]]:
        """Brokers need the controllers to end well; a leader that stops last has no node to hand over to."""
        brokers = [each for each in roles if Role.CONTROLLER not in roles[each]]
        controllers = [each for each in roles if Role.CONTROLLER in roles[each]]
        leader_id = wait_for(partial(find_leader, self.network(), controllers), ANSWER_TIMEOUT_S)
        return [
            brokers,
            [each for each in controllers if each != leader_id],
            [each for each in controllers if each == leader_id],
        ]


def find(name: str) -> Cluster:
    """The handle that clients get for a cluster's name. As `Cluster.connect`."""
    return Cluster.connect(name)


def _roles(node_ids: Collection[int], processes: "Mapping[int, NodeProcess]") -> dict[int, tuple[Role, ...]]:
    """What each node does, as the spec says that the actors were made from."""
    declared = {
        each: role for process in processes.values() for each, role in process.placement.spec.roles.items()
    }
    return {each: declared.get(each, (role_of(each),)) for each in node_ids}


def _remove_of_the_gone(spec: ClusterSpec, with_actor: Collection[int]) -> None:
    """Removes the directories of nodes that the spec has but that have no actor any more, wherever they are."""
    from rayka.actors.removal import remove_everywhere

    gone = [each for each in spec.roles if each not in with_actor]
    directories = [each for node_id in gone for each in node_directories(spec, node_id)]
    if directories:
        remove_everywhere(directories)


def _ids_of(node_ids: Collection[int]) -> tuple[int, ...]:
    return tuple(int_of(each, "node_id") for each in node_ids)


def _ignore(_: object) -> None:
    pass


def _spec_of(spec: str | Path | ClusterSpec | None, fields: Mapping[str, Any]) -> ClusterSpec:
    if spec is None:
        return ClusterSpec.of(fields)
    if fields:
        raise ConfigError(
            f"Cluster.start: either a specification or its fields, found both: {sorted(fields)}"
        )
    return spec if isinstance(spec, ClusterSpec) else ClusterSpec.load(spec)
