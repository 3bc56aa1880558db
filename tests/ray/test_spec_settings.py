"""Which settings of a spec changed, which nodes restart for them, and whether these find room. Needs no Ray."""

import re
from typing import Any

import pytest

from rayka.actors.node_placement import NodePlacement
from rayka.actors.spec_changes import changed_settings, lacking_resources, outdated_settings
from rayka.config.broker_config import BROKER_KEYS, CONTROLLER_KEYS, BrokerConfig
from rayka.config.cluster_config import ClusterSpec
from rayka.config.config_model import dotted
from tests.tidy import python_files

BROKER, COORDINATOR, CONTROLLER, COMBINED = 1, 1001, 3001, 2
WITH_COMBINED = {"nodes": [{"id": 2, "roles": ["broker", "controller"]}]}


def spec(**fields: Any) -> ClusterSpec:
    return ClusterSpec.of({"name": "here", "data_dir": "/data", **fields})


def config(**values: Any) -> dict[str, Any]:
    return {"config": values}


@pytest.mark.parametrize(
    ("wanted", "keys", "restarted"),
    [
        ({}, [], []),
        ({"brokers": 3, "controllers": 3, "ray": {"address": "there:1"}}, [], []),
        (config(num_partitions=7), ["num.partitions"], [BROKER, COORDINATOR, CONTROLLER]),
        (config(broker_session_timeout_ms=5_000), ["broker.session.timeout.ms"], [CONTROLLER]),
        (config(min_insync_replicas=2), ["min.insync.replicas"], []),
        ({"brokers": {"min": 1, "max": 3}}, ["brokers"], []),
        ({"brokers": {"min": 1, "max": 3}, "scaling": {"bytes_in": 5}}, ["brokers", "scaling"], []),
        (
            {"coordinators": {"min": 1, "max": 3}, "scaling": {"coordinator_processor_share": 0.5}},
            ["coordinators", "scaling"],
            [],
        ),
        ({"transport": "ray"}, ["transport"], [BROKER, COORDINATOR, CONTROLLER]),
        ({"transport_ports": [7000, 7009]}, ["transport_ports"], [BROKER, COORDINATOR, CONTROLLER]),
        ({"resources": {"broker": {"num_cpus": 1}}}, ["resources.broker"], [BROKER]),
        ({"resources": {"controller": {"memory": 1 << 30}}}, ["resources.controller"], [CONTROLLER]),
    ],
)
def test_a_changed_setting_restarts_the_nodes_that_it_concerns(
    wanted: dict[str, Any], keys: list[str], restarted: list[int]
) -> None:
    running, changed = spec(coordinators=1), spec(**{"coordinators": 1, **wanted})
    assert [each.key for each in changed_settings(running, changed)] == keys
    nodes = (BROKER, COORDINATOR, CONTROLLER)
    assert [each for each in nodes if outdated_settings(running, changed, each)] == restarted


def test_a_key_of_controllers_concerns_a_node_that_is_a_broker_too() -> None:
    changed = spec(**WITH_COMBINED, **config(broker_session_timeout_ms=5_000))
    assert outdated_settings(spec(**WITH_COMBINED), changed, COMBINED)


def test_a_change_says_what_is_and_what_will_be() -> None:
    (change,) = changed_settings(spec(), spec(**config(log_retention_ms=5)))
    assert (change.key, change.before, change.after) == ("log.retention.ms", "none", "5")


def test_a_spec_of_a_process_of_another_version_lacks_keys_and_has_others() -> None:
    former = spec()
    del former.config.__dict__["num_partitions"]
    former.config.__dict__["gone_since"] = 1
    assert changed_settings(former, spec()) == changed_settings(spec(), former) == ()
    assert [each.key for each in changed_settings(former, spec(**config(num_partitions=2)))] == [
        "num.partitions"
    ]


def test_no_broker_reads_a_key_of_controllers() -> None:
    """Else a broker would go on with the former value."""
    elsewhere = (
        "rayka/config",
        "rayka/raft/",
        "rayka/controller/",
        "rayka/node/quorum_driver.py",
        "rayka/sim/",
    )
    others = ("rayka/node/controller_node.py", "rayka/node/snapshot_generator.py", "rayka/testing/")
    supervised = ("rayka/actors/exit_watch.py", "rayka/actors/removal.py")  # by the spec in force
    reading = re.compile(rf"\.({'|'.join(CONTROLLER_KEYS)})\b")
    readers = [
        source.name
        for source in python_files("rayka/")
        if not source.name.startswith((*elsewhere, *others, *supervised)) and reading.search(source.text)
    ]
    assert readers == []
    assert set(CONTROLLER_KEYS) <= set(type(spec().config).model_fields)


def made(running: ClusterSpec, **ray_nodes: str) -> dict[int, NodePlacement]:
    return {int(name[1:]): NodePlacement(running, int(name[1:]), where) for name, where in ray_nodes.items()}


def test_nodes_that_ask_for_more_need_room_where_they_are_beside_what_they_give_back() -> None:
    running = spec(brokers=3, resources={"broker": {"num_cpus": 1}})
    wanted = spec(brokers=3, resources={"broker": {"num_cpus": 2}})
    nodes = made(running, n1="a", n2="a", n3="b")
    assert lacking_resources(wanted, nodes, {"a": {"CPU": 2.0}, "b": {"CPU": 1.0}}) == ""
    lacking = "broker-2 has no room on Ray node a: CPU 1 free of 2 asked"
    assert lacking_resources(wanted, nodes, {"a": {"CPU": 1.0}, "b": {"CPU": 1.0}}) == lacking
    assert lacking_resources(running, nodes, {"a": {"CPU": 0.0}, "b": {"CPU": 0.0}}) == ""
    assert lacking_resources(wanted, nodes, {}) == "", "Ray does not say what is free"


# ---- Every key -----------------------------------------------------------------------------------------------------


APART = {"brokers": 1, "coordinators": 1, "controllers": 1}
ONE_NODE = {"nodes": [{"id": BROKER, "roles": ["broker", "controller"]}]}


def concerned(nodes: dict[str, object], key: str) -> list[int]:
    """The nodes that restart when the key, which is not checked, gets another value."""
    made_from = ClusterSpec.of(nodes)
    config = BrokerConfig.model_construct(**{**BrokerConfig().model_dump(), key: "another"})
    wanted = made_from.model_copy(update={"config": config})
    found = {each: outdated_settings(made_from, wanted, each) for each in wanted.roles}
    assert all(change.key == dotted(key) for changes in found.values() for change in changes)
    return [each for each, changes in found.items() if changes]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("key", BROKER_KEYS)
def test_a_change_of_a_brokers_key_restarts_no_controller(key: str) -> None:
    assert concerned(APART, key) == [BROKER, COORDINATOR]
    assert concerned(ONE_NODE, key) == [BROKER]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("key", CONTROLLER_KEYS)
def test_a_change_of_a_controllers_key_restarts_no_broker(key: str) -> None:
    assert concerned(APART, key) == [CONTROLLER]
    assert concerned(ONE_NODE, key) == [BROKER]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_key_that_brokers_and_controllers_read_restarts_all_nodes() -> None:
    both = [each for each in BrokerConfig.model_fields if each not in (*BROKER_KEYS, *CONTROLLER_KEYS)]
    assert {"num_partitions", "broker_heartbeat_interval_ms", "unclean_leader_election_enable"} <= set(both)
    for key in both:
        if key != "min_insync_replicas":  # a cluster keeps it in its metadata
            assert concerned(APART, key) == [BROKER, COORDINATOR, CONTROLLER], key
