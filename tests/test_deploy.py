"""The files of `examples/deploy`: each fits its schema, and all fit each other."""

import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml

from rayka.config.cluster_config import ClusterSpec, CountRange, RoleResources
from rayka.ids import Role
from tests import kuberay_schema

DEPLOY = Path(__file__).parent.parent / "examples" / "deploy"
RESOURCE = "rayka"


def spec() -> ClusterSpec:
    return ClusterSpec.load(DEPLOY / "cluster.yaml")


def launcher() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "aws.yaml").read_text())
    return found


def kuberay_documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text()))


def kuberay() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The Ray cluster, and what it refers to."""
    cluster, *others = kuberay_documents()
    return cluster["spec"], others


def disk_groups() -> list[dict[str, Any]]:
    return [each for each in kuberay()[0]["workerGroupSpecs"] if "resources" in each["rayStartParams"]]


def disk_groups_that_stay() -> list[dict[str, Any]]:
    return [each for each in disk_groups() if each["minReplicas"]]


def disk_groups_that_come() -> list[dict[str, Any]]:
    return [each for each in disk_groups() if not each["minReplicas"]]


def brokers() -> CountRange:
    """Those of the spec come and go by the load."""
    found = spec().ranges[Role.BROKER]
    assert found.min < found.max
    return found


def wanted(name: str, broker_count: int) -> float:
    """How much of a resource the nodes of the spec ask for with so many brokers, all together."""
    controllers, coordinators = spec().controllers, spec().coordinators
    assert isinstance(coordinators, int)
    roles = {"broker": broker_count, "controller": controllers, "coordinator": coordinators}
    by_role: dict[str, RoleResources] = {role: getattr(spec().resources, role) for role in roles}
    if name == "CPU":
        return sum(count * by_role[role].num_cpus for role, count in roles.items())
    return sum(count * by_role[role].resources[name] for role, count in roles.items())


def test_the_launchers_file_fits_the_schema_of_ray() -> None:
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(launcher(), schema)
    assert launcher()["file_mounts"]["~/cluster.yaml"] == "./cluster.yaml"


def test_machines_of_the_launcher_hold_the_most_brokers_and_the_head_none() -> None:
    types = launcher()["available_node_types"]
    disks = types["disks"]
    assert types[launcher()["head_node_type"]]["resources"] == {"CPU": 0}
    assert (disks["min_workers"], disks["max_workers"]) == (brokers().min, brokers().max)
    for name in (RESOURCE, "CPU"):
        assert disks["min_workers"] * disks["resources"][name] >= wanted(name, brokers().min)
        assert disks["max_workers"] * disks["resources"][name] >= wanted(name, brokers().max)
    assert launcher()["max_workers"] >= sum(each.get("max_workers", 0) for each in types.values())
    assert [name for name, each in types.items() if RESOURCE in each["resources"]] == ["disks"]
    assert f"mount -o noatime /dev/nvme1n1 {spec().data_dir}" in disks["worker_setup_commands"][0]


def test_one_more_broker_needs_one_more_machine() -> None:
    """Two on one machine would need no other one, and would share its disk."""
    given = [launcher()["available_node_types"]["disks"]["resources"], *map(resources_of, disk_groups())]
    for each in given:
        assert spec().resources.broker.resources[RESOURCE] * 2 > each[RESOURCE]


def resources_of(group: dict[str, Any]) -> dict[str, float]:
    """Beside processors: KubeRay wants a string that is quoted once more for the shell."""
    found: dict[str, float] = json.loads(json.loads(group["rayStartParams"]["resources"]))
    return found


def test_the_manifests_of_kuberay_fit_its_schema() -> None:
    cluster, *claims = kuberay_documents()
    schemas = json.loads(kuberay_schema.PATH.read_text())
    jsonschema.validate(cluster, schemas[cluster["kind"]])
    for each in claims:
        jsonschema.validate(each["spec"], schemas[each["kind"]])


def test_a_manifest_with_an_unknown_key_a_wrong_value_or_a_missing_key_does_not_fit() -> None:
    schema = json.loads(kuberay_schema.PATH.read_text())["RayCluster"]
    for name, value in (("minReplica", 1), ("maxReplicas", "three"), ("groupName", None)):
        cluster = kuberay_documents()[0]
        cluster["spec"]["workerGroupSpecs"][0][name] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(cluster, schema)
    cluster = kuberay_documents()[0]
    del cluster["spec"]["workerGroupSpecs"][0]["minReplicas"]
    with pytest.raises(jsonschema.ValidationError, match="'minReplicas' is a required property"):
        jsonschema.validate(cluster, schema)


def test_each_disk_of_kuberay_belongs_to_one_pod() -> None:
    claims = {each["metadata"]["name"] for each in kuberay()[1]}
    used = []
    for group in disk_groups_that_stay():
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (1, 1, 1)
        (volume,) = group["template"]["spec"]["volumes"]
        used.append(volume["persistentVolumeClaim"]["claimName"])
    assert Counter(used) == Counter(claims)
    assert len(used) >= brokers().min
    for group in disk_groups_that_come():
        (volume,) = group["template"]["spec"]["volumes"]
        assert "ephemeral" in volume  # each pod gets a claim of its own
    for group in disk_groups():
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["volumeMounts"] == [
            {"name": pod["volumes"][0]["name"], "mountPath": spec().data_dir}
        ]


def test_pods_with_disks_hold_the_most_brokers_and_the_head_none() -> None:
    cluster, _ = kuberay()
    assert cluster["enableInTreeAutoscaling"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for count, pods in ((brokers().min, "minReplicas"), (brokers().max, "maxReplicas")):
        groups = disk_groups()
        assert sum(each[pods] for each in groups) == count
        assert sum(each[pods] * resources_of(each)[RESOURCE] for each in groups) >= wanted(RESOURCE, count)
        assert sum(each[pods] * int(each["rayStartParams"]["num-cpus"]) for each in groups) >= wanted(
            "CPU", count
        )


def test_pods_with_disks_are_never_on_one_machine() -> None:
    for group in disk_groups():
        (rule,) = group["template"]["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert group["template"]["metadata"]["labels"] == rule["labelSelector"]["matchLabels"]


def test_all_machines_and_pods_have_the_ray_that_rayka_is_tried_with() -> None:
    cluster, _ = kuberay()
    assert cluster["rayVersion"] == version("ray")
    assert f"'ray[default]=={version('ray')}'" in launcher()["setup_commands"][0]
    assert f"FROM rayproject/ray:{version('ray')}-py311" in (DEPLOY / "Dockerfile").read_text()
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    images = {each["image"] for group in groups for each in group["template"]["spec"]["containers"]}
    assert images == {f"rayka:{version('ray')}"}
