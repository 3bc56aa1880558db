"""How a broker has the ISRs of its partitions changed: proposals to the controller, one request at a time.

A partition proposes; the controller decides, and says what is committed; what comes together goes together. Invariants:
of a partition only the newest proposal is sent, and none that has been overtaken by metadata; a proposal that the
controller could not decide is sent again after a pause, for as long as the partition stands by it (B12). Kafka:
`AlterPartitionManager`, and the `isr-expiration` task of `ReplicaManager` (B10).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from rayka.errors import ApiError
from rayka.node import clock
from rayka.node.controller_link import ControllerLink, Pauses
from rayka.node.repeats import Repeats
from rayka.node.settings import NodeSettings
from rayka.node.storage.data_directories import DataDirectories
from rayka.node.turns import in_turns
from rayka.partition.partition import Partition
from rayka.partition.partition_leader import PartitionLeader
from rayka.protocol.membership import AlterPartitionItem, AlterPartitionRequest

_logger = logging.getLogger(__name__)


class IsrChanges:
    """The proposals of one broker."""

    def __init__(
        self,
        settings: NodeSettings,
        link: ControllerLink,
        directories: DataDirectories,
        on_changed: Callable[[Partition], None],
    ) -> None:
        self._settings = settings
        self._link = link
        self._directories = directories
        self._on_changed = on_changed
        self._wanted: dict[Partition, AlterPartitionItem] = {}
        self._has_work = asyncio.Event()
        self._failures = Repeats(_logger, logging.INFO)  # each fail-over has some

    def __repr__(self) -> str:
        return f"<IsrChanges of {self._settings.node_id} wanted={len(self._wanted)}>"

    def propose(self, partition: Partition, item: AlterPartitionItem) -> None:
        """To be sent as soon as no request is under way."""
        self._wanted[partition] = item
        self._has_work.set()

    async def run(self) -> None:
        """Sends proposals for ever."""
        pauses = Pauses()
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            sent = {each: item for each, item in self._wanted.items() if each.pending_isr}
            self._wanted = {}
            if sent and await self._send(sent):
                await pauses.pause()
            else:
                pauses.reset()

    async def _send(self, sent: dict[Partition, AlterPartitionItem]) -> bool:
        """Whether some of it has to be sent again."""
        request = AlterPartitionRequest(
            self._settings.node_id, self._directories.broker_epoch, tuple(sent.values())
        )
        try:
            response = await self._link.call(
                request, self._settings.config.controller_quorum_request_timeout_ms
            )
        except ApiError as error:
            self._failures.failed(None, f"{self!r}: {error}; trying again")
            for partition, item in sent.items():
                self._propose_again(partition, item)
            return True
        self._failures.succeeded(None)
        for (partition, item), result in zip(sent.items(), response.partitions, strict=True):
            leader = partition.role
            if isinstance(leader, PartitionLeader):
                again = leader.on_alter_partition(item, result, now_ms=clock.now_ms())
                self._on_changed(partition)
                if again is not None:
                    self._propose_again(partition, again)
        return bool(self._wanted)

    def _propose_again(self, partition: Partition, item: AlterPartitionItem) -> None:
        """Unless there is a newer one."""
        self._wanted.setdefault(partition, item)
        self._has_work.set()

    async def shrink_forever(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        """Proposes to go on without replicas that do not keep up. Twice in the time that they have, so each is found
        within one and a half times that (B10)."""
        while True:
            await asyncio.sleep(self._settings.config.replica_lag_time_max_ms / 2000)
            now_ms = clock.now_ms()
            async for partition in in_turns(partitions()):
                leader = partition.role
                if not isinstance(leader, PartitionLeader):
                    continue
                item = leader.maybe_recover() or leader.maybe_shrink_isr(now_ms=now_ms)
                if leader.maybe_increment_high_watermark(now_ms):
                    self._on_changed(partition)
                if item is not None:
                    self.propose(partition, item)
