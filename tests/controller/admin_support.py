"""What the tests of administration share: a cluster with topics placed by hand, and what brokers would say of it."""

from collections.abc import Sequence

from rayka.config.broker_config import BrokerConfig
from rayka.errors import ErrorCode
from rayka.protocol.membership import AlterPartitionItem, AlterPartitionRequest, IsrMember
from rayka.protocol.topics import NewTopic, PartitionResult
from tests.controller.support import Machine


def cluster(brokers: int = 5, config: BrokerConfig | None = None) -> Machine:
    """So many brokers from 1, running."""
    machine = Machine(config)
    machine.start(*range(1, brokers + 1))
    return machine


def create(
    machine: Machine,
    *assignments: tuple[int, ...],
    name: str = "orders",
    configs: dict[str, str] | None = None,
) -> None:
    """A topic whose partitions have these replicas."""
    (result,) = machine.create(NewTopic(name, configs=configs or {}, assignments=assignments)).topics
    assert result.error_code is ErrorCode.NONE, result.error_message


def report_isr(machine: Machine, *isr: int, name: str = "orders", number: int = 0) -> None:
    """Which replicas the leader says are in sync."""
    partition = machine.partition(name, number)
    item = AlterPartitionItem(
        topic_id=machine.image.topics[name].topic_id,
        partition=number,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=tuple(IsrMember(each) for each in isr),
    )
    epoch = machine.image.brokers[partition.leader_id].broker_epoch
    machine.handle(AlterPartitionRequest(partition.leader_id, epoch, (item,)))


def fence(machine: Machine, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        machine.heartbeat(broker_id, want_fence=True)


def outcomes(results: Sequence[PartitionResult]) -> list[ErrorCode]:
    """The error codes; each but NONE says more in its message."""
    for each in results:
        assert bool(each.error_message) == (each.error_code is not ErrorCode.NONE)
    return [each.error_code for each in results]
