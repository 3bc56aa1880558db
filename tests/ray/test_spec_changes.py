"""What may change in the spec of a cluster that runs, and which disks a spec must not forget. Needs no Ray."""

from pathlib import Path
from typing import Any

import pytest

from rayka.actors.formatting import refuse_undeclared
from rayka.actors.found_directories import look_around
from rayka.actors.names import cluster_directories, formatted_directories
from rayka.actors.scaling_planner import with_scaled, with_scaled_among
from rayka.actors.spec_changes import added_nodes, refusal, united, with_broker, without_broker
from rayka.config.cluster_config import ClusterSpec
from rayka.errors import ConfigError, StorageError
from rayka.ids import ZERO_ID, Role
from rayka.log.meta_properties import META_PROPERTIES_FILE, MetaProperties, encode_meta_properties

BOTH = ["broker", "controller"]


def spec(**fields: Any) -> ClusterSpec:
    return ClusterSpec.of({"name": "here", "data_dir": "/data", **fields})


def nodes(**roles: list[str]) -> dict[str, Any]:
    """`n1=["broker"]` as a spec has it."""
    return {"nodes": [{"id": int(name[1:]), "roles": each} for name, each in roles.items()]}


@pytest.mark.parametrize(
    ("running", "wanted", "added"),
    [
        ({}, {}, ()),
        ({"brokers": 1}, {"brokers": 3}, (2, 3)),
        ({"brokers": 2}, nodes(n1=["broker"], n2=["broker"], n3001=["controller"]), ()),
        (nodes(n1=BOTH), nodes(n1=BOTH, n5=["broker"]), (5,)),
        (nodes(n1=["broker"], n3=["broker"], n3001=["controller"]), {"brokers": 3}, (2,)),
        ({"ray": {"address": "here:1"}}, {"ray": {"address": "there:1"}}, ()),
        ({"coordinators": 1}, {"coordinators": 2, "brokers": 2}, (2, 1002)),
        ({}, {"controllers": 3}, (3002, 3003)),
        (nodes(n1=BOTH), nodes(n1=BOTH, n2=BOTH, n3=BOTH), (2, 3)),
        ({}, {"config": {"num.partitions": 7}, "brokers": 2}, (2,)),
        ({}, {"resources": {"broker": {"num_cpus": 1}}}, ()),
        ({}, {"transport": "ray"}, ()),
    ],
    ids=[
        "same",
        "more",
        "written-otherwise",
        "beside-a-combined-one",
        "one-that-was-removed",
        "another-address",
        "coordinators",
        "controllers",
        "combined",
        "config",
        "resources",
        "transport",
    ],
)
def test_nodes_may_be_added_to_a_cluster_that_runs_and_settings_differ(
    running: dict[str, Any], wanted: dict[str, Any], added: tuple[int, ...]
) -> None:
    assert refusal(spec(**running), spec(**wanted)) == ""
    assert added_nodes(spec(**running), spec(**wanted)) == added


@pytest.mark.parametrize(
    ("running", "wanted", "says"),
    [
        (
            {},
            {"data_dir": "/other"},
            "data_dir /data, not /other; stop it first with `rayka stop --cluster here`",
        ),
        ({"controllers": 3}, {}, "controller 3002, which the spec does not have; "),
        ({"controllers": 3}, {"brokers": 2}, "`rayka quorum remove 3002 3003`"),
        (nodes(n1=BOTH, n2=BOTH, n3=BOTH), nodes(n1=BOTH), "broker 2, which the spec does not have; keep it"),
        ({"brokers": 3}, {"brokers": 2}, "broker 3, which the spec does not have; "),
        ({"brokers": 3}, {"brokers": 1}, "`rayka broker drain 2`, then `rayka broker remove 2`"),
        ({"coordinators": 1}, {}, "coordinator 1001, which the spec does not have; "),
        (
            nodes(n1=BOTH),
            nodes(n1=[*BOTH, "coordinator"]),
            "node 1 as broker, controller, not as broker, coordinator, controller; stop it first",
        ),
    ],
    ids=[
        "directory",
        "fewer-controllers",
        "fewer-controllers-and-more-brokers",
        "fewer-combined",
        "fewer",
        "fewer-by-two",
        "fewer-coordinators",
        "roles",
    ],
)
def test_a_change_that_needs_a_stop_is_named_with_what_to_do(
    running: dict[str, Any], wanted: dict[str, Any], says: str
) -> None:
    assert says in refusal(spec(**running), spec(**wanted))


def test_a_broker_that_has_gone_need_not_be_in_the_spec() -> None:
    assert refusal(spec(brokers=3), spec(brokers=1), gone=[2, 3]) == ""
    assert "broker 3, which the spec does not have" in refusal(spec(brokers=3), spec(brokers=1), gone=[2])
    assert refusal(spec(controllers=3), spec(), gone=[3002, 3003]) == ""


def test_a_broker_is_taken_out_and_all_else_stays() -> None:
    before = spec(brokers=3, config={"default.replication.factor": 2})
    after = without_broker(before, 2)
    assert list(after.roles) == [1, 3, 3001]
    assert refusal(with_broker(after, 2), before) == ""
    assert added_nodes(after, before) == (2,)


def test_a_coordinator_is_taken_out_as_a_broker_is() -> None:
    after = without_broker(spec(coordinators=2), 1001)
    assert list(after.roles) == [1, 1002, 3001]
    assert with_broker(after, 1001).roles[1001] == (Role.COORDINATOR,)


@pytest.mark.parametrize(
    ("before", "broker_id", "says"),
    [
        (spec(), 1, "without broker 1: nodes: expected at least one broker"),
        (spec(), 3001, "node 3001 is a controller"),
        (spec(**nodes(n1=BOTH, n2=["broker"])), 1, "node 1 is a controller"),
        (
            spec(brokers=3, config={"default.replication.factor": 3}),
            3,
            "without broker 3: config: expected a default.replication.factor of 2 at most",
        ),
    ],
    ids=["last", "controller", "combined", "replicas"],
)
def test_a_broker_that_the_cluster_needs_is_not_taken_out(
    before: ClusterSpec, broker_id: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        without_broker(before, broker_id)


def test_brokers_that_come_and_go_are_no_difference_and_a_smaller_count_is() -> None:
    running = with_scaled(spec(brokers={"min": 2, "max": 5}), [4])
    for wanted in ({"min": 2, "max": 5}, {"min": 2, "max": 3}, {"min": 1, "max": 9}):
        declared = with_scaled_among(spec(brokers=wanted), running.roles)
        assert refusal(running, declared) == ""
        assert added_nodes(running, declared) == ()
    assert "broker 4, which the spec does not have" in refusal(
        running, with_scaled_among(spec(brokers=3), running.roles)
    )
    assert added_nodes(running, with_scaled_among(spec(brokers={"min": 3, "max": 5}), running.roles)) == (3,)


def test_a_broker_that_came_is_removed_and_others_still_may_come() -> None:
    scaling = {"bytes_in": 5}
    running = with_scaled(spec(brokers={"min": 2, "max": 5}, scaling=scaling), [3, 4])
    after = without_broker(running, 3)
    assert list(after.roles) == [1, 2, 4, 3001]
    assert (after.ranges, after.scaling) == (running.ranges, running.scaling)


def test_nodes_that_were_made_from_smaller_and_larger_specs_are_one_cluster() -> None:
    whole = united([spec(brokers=1), spec(brokers=3), spec(brokers=2)])
    assert whole is not None
    assert whole.roles == spec(brokers=3).roles
    assert united([]) is None


def test_the_disk_of_a_broker_that_the_spec_forgot_is_named(tmp_path: Path) -> None:
    larger = spec(brokers=2, data_dir=str(tmp_path))
    for node_id in larger.roles:
        for each in formatted_directories(larger, node_id):
            Path(each).mkdir(parents=True)
            owner = MetaProperties(node_id, ZERO_ID, "one-cluster")
            Path(each, META_PROPERTIES_FILE).write_bytes(encode_meta_properties(owner))
    smaller = larger.model_copy(update={"brokers": 1})
    paths = [each for id in smaller.roles for each in formatted_directories(smaller, id)]
    found = look_around(paths, cluster_directories(smaller))
    with pytest.raises(StorageError, match="broker-2 is the disk of broker-2, which the spec does not have"):
        refuse_undeclared(smaller, found)
    refuse_undeclared(larger, found)
