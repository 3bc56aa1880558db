"""What a node is told when it is made: its identity, its disks, and the outside world it may use."""

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from rayka.config.broker_config import BrokerConfig
from rayka.ids import BROKER_ONLY, Role
from rayka.ports import Disk, Network
from rayka.protocol.membership import NodeState, StatusResponse
from rayka.shard.runtime import STEPS_PER_TURN

if TYPE_CHECKING:  # a client imports this, and shards read batches
    from rayka.shard.shard_records import ShardType

_CONTROLLER_DIRECTORY = "metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """One node's identity and its ports.

    `wall_clock_ms` is for timestamps in records only; waiting and timeouts use the event loop's clock. `crash` ends the
    process (or, in one process, kills the node): it is called once, with the exception that no code expected. `rack` is
    where the node is, for placement (B47) and for readers nearby (G15). `steps_per_turn`: how much of a long request a
    controller does before others have their turn. `log_path` is where its process logs. `shard_types`: the state
    machines that a broker hosts on internal topics. `roles` are those of its broker, which a controller does not have:
    broker, coordinator or both. `processor_seconds`: what the process has used of processors since it began, 0 where
    that is not known.
    """

    node_id: int
    cluster_name: str
    data_dirs: tuple[str, ...]
    config: BrokerConfig
    disk: Disk
    network: Network
    random: Random
    wall_clock_ms: Callable[[], int]
    crash: Callable[[BaseException], None]
    host: str = "localhost"
    pid: int | None = None
    rack: str = ""
    steps_per_turn: int = STEPS_PER_TURN
    log_path: str = ""
    shard_types: "tuple[ShardType, ...]" = ()
    roles: tuple[Role, ...] = BROKER_ONLY
    processor_seconds: Callable[[], float] = lambda: 0.0

    def status(self, state: NodeState, roles: tuple[Role, ...], detail: str = "") -> StatusResponse:
        """What is known of a node in that state before it is open."""
        return StatusResponse(
            self.node_id,
            roles,
            state,
            self.pid,
            self.host,
            self.data_dirs,
            detail=detail,
            log_path=self.log_path,
        )


def controller_settings(settings: NodeSettings) -> NodeSettings:
    """The settings of the controller in a combined node."""
    return replace(settings, data_dirs=(combined_controller_directory(settings.data_dirs[0]),))


def combined_controller_directory(data_dir: str) -> str:
    """Where the controller of a combined node has its files, below the broker's first data directory."""
    return posixpath.join(data_dir, _CONTROLLER_DIRECTORY)
