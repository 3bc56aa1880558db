"""The settings of a node: its identity, its disks, and the outside world that it may use."""

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

# A client imports this, and shards read batches.
if TYPE_CHECKING:
    from rayka.shard.shard_records import ShardType

_CONTROLLER_DIRECTORY = "metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """One node's identity and its ports."""

    node_id: int
    cluster_name: str
    data_dirs: tuple[str, ...]
    config: BrokerConfig
    disk: Disk
    network: Network
    random: Random
    # For timestamps in records only; waits and timeouts use the event loop's clock.
    wall_clock_ms: Callable[[], int]
    # Ends the process (in one process with others: kills the node). Called once, with the exception that no code
    # expected.
    crash: Callable[[BaseException], None]
    host: str = "localhost"
    pid: int | None = None
    # Where the node is, for placement (B47) and for readers nearby (G15).
    rack: str = ""
    # How much of a long request a controller does before other work has its turn.
    steps_per_turn: int = STEPS_PER_TURN
    # Where the process logs.
    log_path: str = ""
    # The state machines that a broker hosts on internal topics.
    shard_types: "tuple[ShardType, ...]" = ()
    # The roles of its broker (broker, coordinator or both), which a controller does not have.
    roles: tuple[Role, ...] = BROKER_ONLY
    # The processor time of the process so far; 0 where it is not known.
    processor_seconds: Callable[[], float] = lambda: 0.0

    def status(self, state: NodeState, roles: tuple[Role, ...], detail: str = "") -> StatusResponse:
        """The status of a node in that state, as far as the settings tell it."""
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
    """The directory of a combined node's controller, below the broker's first data directory."""
    return posixpath.join(data_dir, _CONTROLLER_DIRECTORY)
