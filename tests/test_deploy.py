"""The files of `examples/deploy`: each fits its schema, and all fit each other."""

import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import ray.autoscaler
import yaml

from rayka.config import ClusterSpec, RoleResources

DEPLOY = Path(__file__).parent.parent / "examples" / "deploy"
RESOURCE = "rayka"


def spec() -> ClusterSpec:
    return ClusterSpec.load(DEPLOY / "cluster.yaml")


def launcher() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "aws.yaml").read_text())
    return found


def kuberay() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The Ray cluster, and what it refers to."""
    cluster, *others = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    return cluster["spec"], others


def disk_groups() -> list[dict[str, Any]]:
    return [each for each in kuberay()[0]["workerGroupSpecs"] if "resources" in each["rayStartParams"]]


def wanted(name: str) -> float:
    """How much of a resource the nodes of the spec ask for, all together."""
    roles = {"broker": spec().brokers, "controller": spec().controllers, "coordinator": spec().coordinators}
    by_role: dict[str, RoleResources] = {role: getattr(spec().resources, role) for role in roles}
    if name == "CPU":
        return sum(count * by_role[role].num_cpus for role, count in roles.items())
    return sum(count * by_role[role].resources[name] for role, count in roles.items())


def test_the_launchers_file_fits_the_schema_of_ray() -> None:
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(launcher(), schema)
    assert launcher()["file_mounts"]["~/cluster.yaml"] == "./cluster.yaml"


def test_machines_of_the_launcher_hold_all_nodes_and_the_head_none() -> None:
    types = launcher()["available_node_types"]
    disks = types["disks"]
    assert types[launcher()["head_node_type"]]["resources"] == {"CPU": 0}
    assert disks["min_workers"] == disks["max_workers"] >= spec().brokers
    for name in (RESOURCE, "CPU"):
        assert disks["min_workers"] * disks["resources"][name] >= wanted(name)
    assert [name for name, each in types.items() if RESOURCE in each["resources"]] == ["disks"]
    assert f"mount -o noatime /dev/nvme1n1 {spec().data_dir}" in disks["worker_setup_commands"][0]


def test_each_disk_of_kuberay_belongs_to_one_pod() -> None:
    claims = {each["metadata"]["name"] for each in kuberay()[1]}
    used = []
    for group in disk_groups():
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (1, 1, 1)
        pod = group["template"]["spec"]
        (volume,) = pod["volumes"]
        used.append(volume["persistentVolumeClaim"]["claimName"])
        (container,) = pod["containers"]
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": spec().data_dir}]
    assert Counter(used) == Counter(claims)
    assert len(used) >= spec().brokers


def test_pods_with_disks_hold_all_nodes_and_the_head_none() -> None:
    cluster, _ = kuberay()
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    given = [json.loads(json.loads(each["rayStartParams"]["resources"])) for each in disk_groups()]
    assert sum(each[RESOURCE] for each in given) >= wanted(RESOURCE)
    assert sum(int(each["rayStartParams"]["num-cpus"]) for each in disk_groups()) >= wanted("CPU")


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
