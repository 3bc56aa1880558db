"""How many CPUs a Ray declares that rayka starts: the machine's, and beside them what nodes ask for."""

import os

import pytest

from rayka.actors.node_placement import cpus_of_nodes
from rayka.actors.ray_process import cpus
from rayka.config.cluster_config import ClusterSpec

MACHINE = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, 0.07),
        ({"brokers": 3, "controllers": 3, "coordinators": 2}, 0.25),
        ({"brokers": {"min": 1, "max": 5}, "coordinators": {"min": 1, "max": 2}}, 0.31),
        ({"brokers": 2, "resources": {"broker": {"num_cpus": 2}}}, 4.02),
    ],
)
def test_all_nodes_that_a_spec_may_have_count(fields: dict[str, object], asked: float) -> None:
    assert cpus_of_nodes(ClusterSpec.of(fields)) == pytest.approx(asked)


@pytest.mark.parametrize(("of_nodes", "beside"), [(0, 0), (0.07, 1), (4.02, 5)])
def test_the_machines_cpus_are_all_left_to_other_work(of_nodes: float, beside: int) -> None:
    assert cpus(of_nodes) == MACHINE + beside
