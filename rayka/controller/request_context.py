"""The context of a request to the controller: the image, and the soft state beside the image. Kafka: the fields that
the managers of `QuorumController` share.
"""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from rayka.config.broker_config import BrokerConfig
from rayka.controller.balance_run import BalanceRun, BalanceTrigger
from rayka.controller.broker_loads import BrokerLoads
from rayka.controller.controller_timers import ControllerTimers
from rayka.controller.directory_sizes import DirectorySizes
from rayka.controller.drain_state import DrainState
from rayka.controller.healing_state import AbsenceClocks, Healing
from rayka.controller.leader_elections import Elections
from rayka.controller.move_queue import MoveQueue
from rayka.controller.replica_index import ReplicaIndex
from rayka.controller.replica_placement import ReplicaPlacer
from rayka.controller.returned_brokers import ReturnedBrokers
from rayka.controller.sessions import BrokerSessions
from rayka.metadata.image import MetadataImage


class RequestContext(NamedTuple):
    """The state that a handler reads. `sessions` and all fields after it but `timers` are soft state: a handler may
    change them, and they are not in the metadata log.
    """

    # Everything replayed before the request.
    image: MetadataImage
    # Monotonic.
    now_ms: int
    # The clock of timestamps in records.
    wall_clock_ms: Callable[[], int]
    cluster_id: str
    node_id: int
    config: BrokerConfig
    random: Random
    # The index of the replicas in `image`.
    replicas: ReplicaIndex
    sessions: BrokerSessions
    returned: ReturnedBrokers
    timers: ControllerTimers
    sizes: DirectorySizes
    loads: BrokerLoads
    moves: MoveQueue
    absences: AbsenceClocks
    healing: Healing
    drains: DrainState
    balance: BalanceRun
    balance_trigger: BalanceTrigger

    def elections(self) -> Elections:
        return Elections(self.image, self.config, self.replicas)

    def placer(self) -> ReplicaPlacer:
        return ReplicaPlacer(self.image, self.random, self.replicas, self.config, self.sizes)
