"""Values that an argument does not take: each error is a class of `rayka.errors`, and names what there is."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka import TopicPartition, errors
from rayka.testing.in_process_cluster import InProcessCluster

TYPOS: dict[str, Callable[[Any, Any, Any], object]] = {
    "key": lambda cluster, admin, consumer: rayka.Producer(cluster=cluster, lingerms=3),
    "acks": lambda cluster, admin, consumer: rayka.Producer(cluster=cluster, acks="al"),  # type: ignore[arg-type]
    "codec": lambda cluster, admin, consumer: rayka.Producer(cluster=cluster, compression_type="zip"),
    "serializer": lambda cluster, admin, consumer: rayka.Producer(cluster=cluster, value_serializer="jsn"),
    "policy": lambda cluster, admin, consumer: rayka.Consumer(
        "t", cluster=cluster, auto_offset_reset="earlest"
    ),
    "start": lambda cluster, admin, consumer: rayka.read("t", cluster=cluster, start="earlest"),
    "topic": lambda cluster, admin, consumer: list(rayka.read("tt", cluster=cluster)),
    "topic setting": lambda cluster, admin, consumer: admin.create_topic("y", configs={"retention.mss": 3}),
    "value": lambda cluster, admin, consumer: admin.create_topic("y", configs={"cleanup.policy": "delet"}),
    "broker": lambda cluster, admin, consumer: admin.alter_configs({"num.partitions": 3}, broker="al"),
    "state": lambda cluster, admin, consumer: admin.list_groups(["Emty"]),
    "reset": lambda cluster, admin, consumer: admin.reset_group_offsets("g", to="earlest"),
    "group": lambda cluster, admin, consumer: admin.describe_group("gg"),
    "pattern": lambda cluster, admin, consumer: consumer.subscribe(pattern="("),
    "moves": lambda cluster, admin, consumer: admin.balance(moves=1000),
    "partition": lambda cluster, admin, consumer: consumer.seek(TopicPartition("tt", 0), 3),
    "spec": lambda cluster, admin, consumer: rayka.Cluster.start(brokrs=3),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster() as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("t", partitions=1)
        yield cluster


@pytest.mark.parametrize("typo", TYPOS)
def test_a_typo_raises_a_class_of_the_public_errors(cluster: InProcessCluster, typo: str) -> None:
    with rayka.Admin(cluster=cluster) as admin, rayka.Consumer(cluster=cluster, group_id="g") as consumer:
        with pytest.raises(errors.RaykaError) as raised:
            TYPOS[typo](cluster, admin, consumer)
    assert type(raised.value).__module__ == "rayka.errors"
    assert getattr(errors, type(raised.value).__name__) is type(raised.value)


def test_closed_clients_look_closed(cluster: InProcessCluster) -> None:
    for made in (
        rayka.Producer(cluster=cluster),
        rayka.Admin(cluster=cluster),
        rayka.Consumer(cluster=cluster),
    ):
        assert "closed" not in repr(made)
        made.close()
        assert repr(made).endswith(" closed>")


def test_the_package_shows_its_public_names_and_no_others() -> None:
    assert dir(rayka) == sorted([*rayka.__all__, "__version__"])
    assert all(hasattr(rayka, each) for each in dir(rayka))
