"""What the tests of the controller share: the state machine, its records replayed as the runtime would."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any
from uuid import UUID

from rayka.config.broker_config import BrokerConfig
from rayka.controller.controller import BootstrapMetadata, Controller
from rayka.controller.controller_timers import FenceStaleBroker, SweepBrokers
from rayka.ids import TopicIdPartition
from rayka.metadata.image import MetadataImage, PartitionImage
from rayka.metadata.metadata_records import (
    ELIGIBLE_LEADER_REPLICAS,
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    ConfigRecord,
    EventRecord,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
)
from rayka.protocol.configs import ResourceType
from rayka.protocol.membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    ReportExitRequest,
    ReportExitResponse,
)
from rayka.protocol.topics import CreateTopicsRequest, CreateTopicsResponse, NewTopic
from rayka.shard.shard import Result, Steps, Timer
from tests.metadata.support import directory

CLUSTER_ID = "cluster-a"
SESSION_MS = 9_000
EPOCH_MS = 1_700_000_000_000
SECOND_PROCESS = UUID(int=2)
WITHOUT_ELR = [FeatureLevelRecord(name=METADATA_VERSION, level=1)]  # how an older cluster began (B43)
WITH_ELR = [*WITHOUT_ELR, FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS, level=1)]


_INCIDENTS = ("broker-", "disk-", "controller-")


def is_incident(kind: str) -> bool:
    """Whether an event of this kind is what happened to a node, and no decision."""
    return kind.startswith(_INCIDENTS)


def changes(records: Iterable[MetadataRecord]) -> list[MetadataRecord]:
    """The records but for the events of incidents."""
    return [each for each in records if not (isinstance(each, EventRecord) and is_incident(each.kind))]


class Machine:
    """A controller that has bootstrapped, what it wrote, and the timers of the last request. Time is an attribute."""

    def __init__(self, config: BrokerConfig | None = None, records: Iterable[MetadataRecord] = ()) -> None:
        self._config = config or BrokerConfig()
        self.controller = self._new_controller()
        self.records: list[MetadataRecord] = []
        self.now_ms = 0
        self.timers: Sequence[Timer] = ()
        self.replay(*records)
        self.handle(BootstrapMetadata())

    def _new_controller(self) -> Controller:
        return Controller(
            cluster_id=CLUSTER_ID,
            node_id=3001,
            config=self._config,
            random=Random(1),
            wall_clock_ms=lambda: EPOCH_MS + self.now_ms,
        )

    @property
    def image(self) -> MetadataImage:
        return self.controller.image(len(self.records))

    def handle(self, request: Any) -> Any:
        """The response, its records replayed. Raises what the controller raises."""
        outcome = self.controller.handle(request, now_ms=self.now_ms, next_offset=len(self.records))
        result = outcome if isinstance(outcome, Result) else self._take_steps(outcome)
        self.replay(*result.records)
        self.timers = result.timers
        return result.response

    def _take_steps(self, steps: Steps[MetadataRecord, Any]) -> Result[MetadataRecord, Any]:
        """To the end, each in a turn of its own: what it wrote is replayed, and looked at, before the next."""
        try:
            step = next(steps)
            while True:
                self.replay(*(step if isinstance(step, list) else [step] if step is not None else []))
                assert self.image is not None
                step = steps.send(len(self.records))
        except StopIteration as end:
            result: Result[MetadataRecord, Any] = end.value
            return result

    def written_by(self, request: Any) -> list[MetadataRecord]:
        """Without what is recorded of incidents."""
        count = len(self.records)
        self.handle(request)
        return changes(self.records[count:])

    @property
    def registered_offset(self) -> int:
        """That of the newest registration."""
        return max(
            offset for offset, each in enumerate(self.records) if isinstance(each, RegisterBrokerRecord)
        )

    def replay(self, *records: MetadataRecord) -> None:
        for record in records:
            self.controller.replay(record, len(self.records))
            self.records.append(record)

    # ---- Brokers -----------------------------------------------------------------------------------------------------

    def register(self, broker_id: int, **changes: Any) -> int:
        """Its epoch."""
        response: RegisterBrokerResponse = self.handle(registration(broker_id, **changes))
        return response.broker_epoch

    def restarted(self, broker_id: int, **changes: Any) -> RegisterBrokerRequest:
        """The registration of the process that has taken over what the registered one left; other fields as given."""
        fields = {
            "incarnation_id": SECOND_PROCESS,
            "known_broker_epoch": self.image.brokers[broker_id].broker_epoch,
        }
        return registration(broker_id, **(fields | changes))

    def restart(self, broker_id: int, **changes: Any) -> int:
        """Its epoch."""
        response: RegisterBrokerResponse = self.handle(self.restarted(broker_id, **changes))
        return response.broker_epoch

    def change_controller(self) -> None:
        """Another controller becomes active, which has replayed what was written so far."""
        self.controller = self._new_controller()
        for offset, record in enumerate(self.records):
            self.controller.replay(record, offset)
        self.controller.on_active(now_ms=self.now_ms, next_offset=len(self.records))

    def heartbeat(self, broker_id: int, **changes: Any) -> HeartbeatResponse:
        """From the broker's present process, which has applied everything; other fields as given."""
        fields: dict[str, Any] = {
            "broker_id": broker_id,
            "broker_epoch": self.image.brokers[broker_id].broker_epoch,
            "current_metadata_offset": len(self.records) - 1,
            "want_fence": False,
            "want_shut_down": False,
        }
        request = HeartbeatRequest(**(fields | changes))
        self.controller.on_heartbeat(request, now_ms=self.now_ms, next_offset=len(self.records))
        response: HeartbeatResponse = self.handle(request)
        return response

    def report_exit(self, broker_id: int, incarnation_id: UUID) -> bool:
        """Whether the broker is fenced."""
        request = ReportExitRequest(broker_id, incarnation_id)
        self.controller.on_exit(request, next_offset=len(self.records))
        response: ReportExitResponse = self.handle(request)
        return response.is_fenced

    def start(self, *broker_ids: int, **changes: Any) -> None:
        """Registered and unfenced."""
        for broker_id in broker_ids:
            self.register(broker_id, **changes)
            self.heartbeat(broker_id)

    def sweep(self, late_ms: int = 0) -> int:
        """How many rounds it took until no broker was left to fence."""
        self.handle(SweepBrokers(self.now_ms - late_ms))
        rounds = 1
        while self.handle(FenceStaleBroker()):
            rounds += 1
        return rounds

    # ---- Topics ------------------------------------------------------------------------------------------------------

    def create(self, *topics: NewTopic) -> CreateTopicsResponse:
        response: CreateTopicsResponse = self.handle(CreateTopicsRequest(topics))
        return response

    def configure(self, name: str, key: str, value: str) -> None:
        """A key of a topic."""
        self.replay(ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=name, name=key, value=value))

    def partition(self, name: str = "orders", number: int = 0) -> PartitionImage:
        found = self.image.partition(TopicIdPartition(self.image.topics[name].topic_id, number))
        assert found is not None
        return found


def registration(broker_id: int, **changes: Any) -> RegisterBrokerRequest:
    """Of a broker with one directory, by its first process; other fields as given."""
    fields: dict[str, Any] = {
        "broker_id": broker_id,
        "cluster_id": CLUSTER_ID,
        "incarnation_id": UUID(int=1000 + broker_id),
        "host": "localhost",
        "directories": (directory(broker_id),),
        "max_metadata_version": METADATA_VERSION_MAX,
    }
    return RegisterBrokerRequest(**(fields | changes))
