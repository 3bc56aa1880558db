"""Topics that get more partitions while producers write to them and a group reads them.

An operator asks for them, once each time; what is committed is what clients are told of, whether its answer came or
not.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from rayka.errors import ApiError
from rayka.ids import TopicPartition
from rayka.protocol.active_controller import ActiveController
from rayka.protocol.topics import CreatePartitionsRequest, NewPartitions
from rayka.sim.checks.replica_views import Replication
from rayka.sim.clients.acting import Acting
from rayka.sim.run_options import GROUP_OPERATOR_ID, TopicPlan
from rayka.sim.world.machines import SimCluster

_TIMEOUT_MS = 3_000
_PAUSE_S = 4.0
_LOOK_S = 0.25


class TopicGrowth(Acting):
    """The topics of a run that grows them. `on_added` is called for each partition when it is committed."""

    def __init__(self, cluster: SimCluster, replication: Replication) -> None:
        super().__init__(cluster, GROUP_OPERATOR_ID)
        self.on_added: Callable[[Sequence[TopicPartition]], None] = lambda partitions: None
        self._plan = cluster.options.group
        self._replication = replication
        self._known: dict[str, int] = {}  # partitions by topic
        self._random = Random(f"growth {cluster.options.seed}")
        self._is_on = bool(cluster.options.group_member_ids) and self._plan.grows

    def __repr__(self) -> str:
        return f"<TopicGrowth {self._known}>"

    def start(self, topics: Sequence[TopicPlan]) -> None:
        """Topics that have been created, and may grow from now on."""
        self._known |= {each.name: each.partition_count for each in topics}
        if self._is_on and not self.tasks:
            for each in (self._ask(), self._look()):
                self.begin("growth", each)

    def stop_asking(self) -> None:
        """No new ones; what is asked for may be done yet."""
        for each in self.tasks[:1]:
            each.cancel()

    async def _ask(self) -> None:
        active = ActiveController(self.cluster.network.port(self.process))
        while True:
            await asyncio.sleep(self._random.expovariate(1) * _PAUSE_S)
            name = self._random.choice(list(self._known))
            count = self._plan.next_partition_count(self._known[name])
            if count == self._known[name]:
                continue
            self.tell("grow", f"{name} to {count} partitions")
            try:
                await active.call(CreatePartitionsRequest((NewPartitions(name, count),)), _TIMEOUT_MS)
            except ApiError as error:
                self.tell("grow", f"{name}: {error.code.name}")

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for name, known in self._known.items():
                topic = self._replication.image.topics.get(name)
                count = known if topic is None else len(topic.partitions)
                self._known[name] = count
                self.on_added([TopicPartition(name, number) for number in range(known, count)])
