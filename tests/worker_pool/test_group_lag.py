"""What waits for a group, on the real nodes in this process."""

from collections.abc import Iterator

import pytest

import rayka
import rayka.testing
from rayka import TopicPartition
from rayka.testing import InProcessCluster
from rayka.worker_pool.scaling import GroupLag

COUNT = 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster() as running:
        with rayka.Admin(cluster=running) as admin:
            admin.create_topic("work", partitions=2)
        with rayka.Producer(cluster=running) as producer:
            for number in range(2 * COUNT):
                producer.send("work", b"%d" % number, partition=number % 2)
        yield running


def look(cluster: InProcessCluster, group_id: str, *, begins_at_end: bool = False) -> tuple[int, int]:
    lag = GroupLag(cluster, group_id, ["work"], begins_at_end=begins_at_end)  # type: ignore[arg-type]
    try:
        return lag.look()
    finally:
        lag.close()


def test_all_records_wait_for_a_group_that_has_committed_nothing(cluster: InProcessCluster) -> None:
    assert look(cluster, "new") == (2 * COUNT, 2)


def test_what_was_there_before_does_not_wait_for_a_group_that_begins_at_the_end(
    cluster: InProcessCluster,
) -> None:
    assert look(cluster, "late", begins_at_end=True) == (0, 2)
    with rayka.Consumer(cluster=cluster, group_id="late") as consumer:
        consumer.commit({TopicPartition("work", 0): 7})
    assert look(cluster, "late", begins_at_end=True) == (COUNT - 7, 2)


def test_what_is_committed_and_what_is_deleted_waits_no_more(cluster: InProcessCluster) -> None:
    first, second = TopicPartition("work", 0), TopicPartition("work", 1)
    with rayka.Consumer(cluster=cluster, group_id="old") as consumer:
        consumer.commit({first: 2, second: 7})
    assert look(cluster, "old") == (COUNT - 2 + COUNT - 7, 2)
    with rayka.Admin(cluster=cluster) as admin:
        admin.delete_records({first: 5})
    assert look(cluster, "old") == (COUNT - 5 + COUNT - 7, 2)
