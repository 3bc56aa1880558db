"""A cluster in this process, for tests: the real nodes and the real wire format, no Ray, no other process.

Nodes run on the IO thread that clients use too. `kill` is what `kill -9` is to a process: tasks stop where
they are, nothing is flushed or closed, locks are released, the page cache stays. Invariant: when `stop`
returns, no task, lock, thread or temporary file of the cluster is left, and a node that crashed by a bug is
an error.
"""

import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from rayka import forks
from rayka.client import io_thread
from rayka.config.broker_config import BrokerConfig
from rayka.ids import FIRST_BROKER_ID, FIRST_CONTROLLER_ID, FIRST_COORDINATOR_ID, node_name
from rayka.options import Transport
from rayka.ports import Disk
from rayka.protocol.membership import MetadataPartition
from rayka.testing.in_process_network import InProcessNetwork
from rayka.testing.in_process_nodes import InProcessDescription, InProcessNodes

_START_TIMEOUT_S = 60.0
# Groups begin at once, and a member that dies may have a short session: else a test waits for seconds.
_QUICK_GROUPS = {"group_initial_rebalance_delay_ms": 0, "group_min_session_timeout_ms": 100}


def cluster(
    brokers: int = 1,
    *,
    controllers: int = 1,
    coordinators: int = 0,
    data_dir: str | Sequence[str] | None = None,
    config: Mapping[str, Any] | None = None,
    disks: Mapping[int, Disk] | None = None,
    racks: Mapping[int, str] | None = None,
    name: str = "testing",
) -> "InProcessCluster":
    """A running cluster of controllers (nodes from 3001), brokers (nodes from 1) and coordinators (nodes from 1001);
    use it in a `with` statement.

    `data_dir`: a directory, or several over which each broker and coordinator spreads its partitions; a temporary one,
    removed at the end, by default. Data that is there is kept and served. `config` has Kafka's broker keys.
    Unless it names them, two keys differ from production, so that groups do not wait: group.initial.rebalance.delay.ms
    is 0, and group.min.session.timeout.ms is 100.
    `disks` replaces the real disk of some nodes, `racks` says where they are, both by id. Pass the cluster to
    clients as `cluster=`.
    """
    forks.refuse()
    given = BrokerConfig.parse(config or {}, what="config")
    quick = {name: value for name, value in _QUICK_GROUPS.items() if name not in given.model_fields_set}
    parsed = given.model_copy(update=quick)
    temporary_dir = None if data_dir else tempfile.mkdtemp(prefix="rayka-")
    nodes = InProcessNodes(
        name,
        node_ids=[
            *range(FIRST_CONTROLLER_ID, FIRST_CONTROLLER_ID + controllers),
            *range(FIRST_BROKER_ID, FIRST_BROKER_ID + brokers),
            *range(FIRST_COORDINATOR_ID, FIRST_COORDINATOR_ID + coordinators),
        ],
        data_dirs=[data_dir] if isinstance(data_dir, str) else data_dir or [temporary_dir or ""],
        config=parsed,
        disks=disks or {},
        racks=racks or {},
    )
    return InProcessCluster(nodes, temporary_dir)


class InProcessCluster:
    """Made by `cluster`; a handle for clients. `nodes` belong to the IO thread."""

    def __init__(self, nodes: InProcessNodes, temporary_dir: str | None) -> None:
        self.nodes = nodes
        self._temporary_dir = temporary_dir
        try:
            io_thread.run(nodes.start, _START_TIMEOUT_S)
        except BaseException:
            self._abandon()
            raise

    def __repr__(self) -> str:
        return f"<InProcessCluster {self.name} {[node_name(each) for each in self.nodes.running]}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if forks.is_cut_off():  # the nodes are the parent's
            return
        if error is None:
            self.stop()
        else:
            self._abandon()  # the test's own failure is the one to see

    # ---- For clients -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.nodes.name

    def network(self, transport: Transport = "auto") -> InProcessNetwork:
        """A new caller to the nodes; its calls are awaited on the IO thread. No call leaves this process."""
        return self.nodes.network()

    def describe(self) -> InProcessDescription:
        """The descriptions of the running nodes."""
        return io_thread.run(self.nodes.describe, _START_TIMEOUT_S)

    # ---- For tests -------------------------------------------------------------------------------------

    def data_dirs(self, node_id: int) -> tuple[str, ...]:
        """The data directories of one node; a controller has one."""
        return self.nodes.data_dirs(node_id)

    def kill(self, node_id: int) -> None:
        """Ends the node as `kill -9` would. Raises ValueError when it does not run."""
        io_thread.run(partial(self.nodes.kill, node_id), _START_TIMEOUT_S)

    def restart(self, node_id: int) -> None:
        """Starts the node on what it has on disk, after a controlled shutdown if it runs; returns when it
        serves: a controller, when one is active, if there can be one. Raises ValueError when the cluster has no such
        node."""
        io_thread.run(partial(self.nodes.restart, node_id), _START_TIMEOUT_S)

    def replace_disk(self, node_id: int) -> None:
        """Gives a broker or coordinator that does not run new, empty data directories, as a new machine would have
        them. Raises ValueError when it runs, or is a controller."""
        io_thread.run(partial(self.nodes.replace_disk, node_id), _START_TIMEOUT_S)

    def partition(self, a: int, b: int) -> None:
        """Nothing passes between these two nodes any more, in either direction, until `heal`. What they send is held
        back, so their calls time out."""
        io_thread.call_soon(lambda: self.nodes.switch.part(a, b))

    def heal(self) -> None:
        """Reconnects all nodes; held messages are delivered first."""
        io_thread.call_soon(self.nodes.switch.heal)

    def await_active_controller(self) -> int:
        """The node that leads the metadata and serves, once there is one. Raises TimeoutError after a minute."""
        return io_thread.run(self.nodes.await_active, _START_TIMEOUT_S)

    def await_isr(self, topic: str, partition: int, isr: Collection[int]) -> MetadataPartition:
        """The partition as the active controller knows it, once exactly these brokers are in sync. Raises TimeoutError
        after a minute."""
        return self.await_partition(topic, partition, lambda state: sorted(state.isr) == sorted(isr))

    def await_partition(
        self, topic: str, partition: int, condition: Callable[[MetadataPartition], bool]
    ) -> MetadataPartition:
        """The partition as the active controller knows it, once the condition holds. Raises TimeoutError after a
        minute."""
        return io_thread.run(
            partial(self.nodes.await_partition, topic, partition, condition), _START_TIMEOUT_S
        )

    def fail_calls(
        self, api_name: str, *, times: int = 1, is_executed: bool = False, node_id: int | None = None
    ) -> None:
        """The next calls of this API end in NetworkException; with `is_executed` the node has done its work
        by then."""
        fail_calls = partial(self.nodes.switch.fail_calls, api_name, times=times)
        io_thread.call_soon(partial(fail_calls, is_executed=is_executed, node_id=node_id))

    def stop(self) -> None:
        """A controlled shutdown of all nodes. Raises RuntimeError if one has crashed by a bug."""
        try:
            io_thread.run(self.nodes.stop, _START_TIMEOUT_S)
        finally:
            self._abandon()
        for node_id, error in self.nodes.crashes:
            raise RuntimeError(f"{node_name(node_id)} crashed: {error!r}") from error

    def _abandon(self) -> None:
        """Ends running nodes and removes temporary files."""
        io_thread.run(self.nodes.kill_all, _START_TIMEOUT_S)
        if self._temporary_dir is not None:
            shutil.rmtree(self._temporary_dir, ignore_errors=True)
