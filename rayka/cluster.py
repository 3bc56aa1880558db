"""A cluster of nodes on Ray: started, found by name, described, changed, stopped.

A start is level-triggered: it compares the spec with the actors there are, and makes the missing ones. So a start that
was interrupted, or runs twice at the same time, ends at the same cluster. No record passes through this module. Modules
that only a start, a stop or a removal needs are imported by these, so that clients and commands connect fast.
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
    """A running cluster.

    `with Cluster.start(...) as cluster:` stops the cluster at the end of the block if this call started it; its data
    stays. A cluster that ran before, found by `start` or by `connect`, goes on.

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
        Coordinators lead internal partitions, so that heavy traffic of records does not delay groups; without
        coordinators, brokers lead them.

        Returns when every node is registered and unfenced. Existing data directories bring back all they hold.
        Directories are formatted only if the cluster has none anywhere. Nodes in `replace` start again on an empty
        disk: a broker without its records, a controller as an observer, to which `Admin.add_raft_voter` gives a vote
        (and `remove_raft_voter` takes away that of its former self). `"2:/mnt/disk2"` is one directory of broker 2,
        which keeps the others; a broker starts without a directory that is missing even if `replace` does not name it.
        Without a Ray, a local one is started that ends with this process.

        A cluster that runs already with the same spec is returned as it is. One that runs with another spec gets the
        differences while it serves; `plan_change` says them in advance, `change` afterwards. New brokers get replicas
        of new topics at once, and their share of the others by a balance soon after (`balancer.enable`). New
        coordinators take over their share of internal partitions at once. New controllers get their votes one after
        another. Other settings take effect by a restart of the nodes that they concern, one at a time as `restart` does
        it; `on_restarted` is called after each, and `force` accepts partitions below `min.insync.replicas` during the
        restarts. The next start finishes one that was interrupted. Data directories and roles cannot change, and a node
        that the spec leaves out is not taken away. A node in `replace` has to be lost or failed, or its directories in
        `replace` offline; it is replaced while the others run.

        Raises ConfigError, ClusterExists (runs with another directory, other roles or more nodes), StorageError
        (directories are missing) and UnavailableError (no Ray at the address given; a node that did not start, or did
        not come back, with its reason).
        """
        from rayka.actors.cluster_start import ClusterStart
        from rayka.actors.node_placement import cpus_of_nodes
        from rayka.actors.spec_changes import SpecUpdate

        declared = _spec_of(spec, fields)
        address = connect_or_start(declared.ray.address, cpus_of_nodes=cpus_of_nodes(declared))
        cluster = cls(declared.name, address)
        with only_start(declared.name, START_TIMEOUT_S):
            starting = ClusterStart(cluster, declared, replace)
            starting.execute()
            cluster._is_started_here = not starting.is_running
            if starting.is_running or replace:
                _, processes = processes_of(declared.name)
                update = SpecUpdate(cluster, kept_record(declared.name), processes, starting.spec)
                change = update.plan(starting.added)
                update.execute(change, force=force, on_restarted=on_restarted or _ignore)
                cluster._change = change
        return cluster

    @classmethod
    def connect(cls, name: str = "rayka", *, address: str = AUTO) -> Self:
        """Connects to the running cluster of that name. Starts nothing, neither nodes nor Ray.

        Raises ClusterNotFound naming the cluster, the namespace and the Ray address; UnavailableError without a Ray.
        """
        # A name of another type cannot be a cluster's.
        if not isinstance(name, str):
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
        """The address of the Ray that the cluster runs on."""
        return self._ray_address

    @property
    def added_brokers(self) -> tuple[int, ...]:
        """The brokers and coordinators that this `start` added to a cluster that ran already. The brokers have no
        replica yet.
        """
        added = self._change.added if self._change else ()
        return tuple(each for each in added if role_of(each) is not Role.CONTROLLER)

    @property
    def change(self) -> "SpecChange | None":
        """The changes that this `start` made to a cluster that ran already; None if it made none."""
        return self._change

    def network(self, transport: Transport = "auto") -> RayNetwork:
        """Returns a new caller to the cluster's nodes, for one client. The transport `ray` takes no direct lane."""
        return RayNetwork(self._name, for_client=True, transport=transport)

    def describe(self) -> ClusterDescription:
        """Describes the nodes and the contents of the cluster. Raises ClusterNotFound when the cluster was stopped."""
        return wait_for(
            partial(describe, self.network(), self._ray_address, self._node_ids()), ANSWER_TIMEOUT_S
        )

    def remove_broker(self, broker_id: int) -> None:
        """Removes a broker or coordinator that holds no replica, for good: stops it, makes the controller forget it,
        removes its directories, and takes it out of the cluster's spec. Works also if its machine is lost. Another call
        finishes a removal that was interrupted, except for directories that were left when the controller had forgotten
        the broker.

        `rayka broker drain` moves its replicas first. Raises BrokerIdNotRegistered, InvalidRequest while it holds
        replicas, ConfigError for the last broker, for one that is a controller too, and if the spec's
        `default.replication.factor` needs it; UnavailableError when it is not known to have stopped.
        """
        from rayka.actors.removal import remove_broker

        self._node_ids()  # ClusterNotFound
        with only_start(self._name, START_TIMEOUT_S):
            remove_broker(self, self._record(), broker_id)

    def remove_controllers(self, *node_ids: int) -> None:
        """Removes these controllers for good, the active one too: takes their votes one after another, stops the nodes
        under control, removes their directories, and takes them out of the cluster's spec. Another call finishes a
        removal that was interrupted.

        An odd number has to be left. Raises ConfigError for an even one and for a node that is not a controller alone;
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
        """Returns the changes that `start` would make to this cluster, which runs: settings, nodes that come, votes,
        and the restarts in their order. Raises the errors that `start` raises before it changes anything.
        """
        from rayka.actors.cluster_start import ClusterStart
        from rayka.actors.spec_changes import SpecUpdate

        starting = ClusterStart(self, _spec_of(spec, fields), ())
        return SpecUpdate(self, starting.record, starting.processes, starting.spec).plan()

    def plan_restart(self, *node_ids: int) -> "tuple[RestartStep, ...]":
        """Returns the steps that `restart` would take, in its order. Raises the errors that `restart` raises before it
        stops a node.
        """
        from rayka.actors.rolling_restart import RollingRestart

        return RollingRestart(self, RESTART_TIMEOUT_S).plan(_ids_of(node_ids))

    def restart(
        self,
        *node_ids: int,
        timeout_s: float = RESTART_TIMEOUT_S,
        force: bool = False,
        on_restarted: "Callable[[RestartStep], object] | None" = None,
    ) -> "tuple[RestartStep, ...]":
        """Restarts these nodes, or all if none is named, one after another while the others serve: new code and a new
        process, the same data. Each node hands over what it leads. Then the restart waits until the node runs, its
        replicas are in sync again and, of a controller, it has the metadata, and calls `on_restarted` with its step.
        Returns the steps. Brokers come first, the active controller last.

        Raises ConfigError for a node that the cluster does not have. Raises UnavailableError before anything is stopped
        when another node is away, or, without `force`, a partition would have fewer replicas in sync than
        `min.insync.replicas`; and when a node has not caught up `timeout_s` after its stop: the nodes behind it are
        then left as they are. A node is made again by the spec in force.
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
        last. Then ends their actors for good. Data stays, and so do the logs of the last runs, beside it.

        With `delete_data`, removes the nodes' directories, and all topics and records with them. Raises ClusterNotFound
        when the cluster was stopped already.
        """
        from rayka.actors.cluster_start import united_spec
        from rayka.actors.formatting import remove_directories
        from rayka.actors.node_logs import keep_logs
        from rayka.actors.node_placement import log_places
        from rayka.actors.scaling_rooms import drop_all

        self._node_ids()  # ClusterNotFound
        kept = None
        # The supervisor may be away; a cluster can be stopped all the same.
        with suppress(UnavailableError):
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
        spec = kept.spec if kept else united_spec(processes)
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
        # The cluster may have been stopped within the block.
        with suppress(ClusterNotFound):
            self.stop()

    def _record(self) -> "ClusterRecord":
        """Returns the supervisor's record. Raises UnavailableError if there is no supervisor."""
        record = kept_record(self._name)
        if record is None:
            raise UnavailableError(
                f"cluster {self._name!r} has no supervisor, as after a start or stop that was interrupted; start it "
                "again first"
            )
        return record

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
        """Returns groups of nodes in the order of their stops: brokers need the controllers to end well, and a leader
        that stops last has no node to hand over to.
        """
        brokers = [each for each in roles if Role.CONTROLLER not in roles[each]]
        controllers = [each for each in roles if Role.CONTROLLER in roles[each]]
        leader_id = wait_for(partial(find_leader, self.network(), controllers), ANSWER_TIMEOUT_S)
        return [
            brokers,
            [each for each in controllers if each != leader_id],
            [each for each in controllers if each == leader_id],
        ]


def find(name: str) -> Cluster:
    """Returns the handle of the cluster of this name for clients, like `Cluster.connect`."""
    return Cluster.connect(name)


def _roles(node_ids: Collection[int], processes: "Mapping[int, NodeProcess]") -> dict[int, tuple[Role, ...]]:
    """Returns the roles of each node, by the specs that the actors were made from."""
    declared = {
        each: role for process in processes.values() for each, role in process.placement.spec.roles.items()
    }
    return {each: declared.get(each, (role_of(each),)) for each in node_ids}


def _remove_of_the_gone(spec: ClusterSpec, with_actor: Collection[int]) -> None:
    """Removes the directories of nodes that the spec has but that have no actor any more, on whatever Ray node they
    are.
    """
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
