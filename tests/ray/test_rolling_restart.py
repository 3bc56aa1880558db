"""Which nodes a restart takes, in which order, and what is away meanwhile. Needs no Ray."""

from typing import Any

import msgspec
import pytest

from rayka.actors.cluster_description import ClusterDescription, NodeDescription
from rayka.actors.rolling_restart import (
    RestartStep,
    plan_restart,
    refuse_below_min_isr,
    replicas_behind,
    replicas_in_sync,
)
from rayka.errors import ConfigError, UnavailableError
from rayka.ids import ZERO_ID, Role, TopicPartition, role_of
from rayka.protocol.membership import MetadataPartition, MetadataTopic


def node(node_id: int, quorum_role: str = "", **changes: Any) -> NodeDescription:
    known = {"roles": (role_of(node_id),), "actor_name": f"c/{node_id}", "state": "running"}
    return NodeDescription(node_id=node_id, quorum_role=quorum_role, **{**known, **changes})


def cluster(*nodes: NodeDescription, controller_id: int = 3002) -> ClusterDescription:
    return ClusterDescription(
        name="c",
        cluster_id="x",
        ray_address="",
        namespace="",
        controller_id=controller_id,
        leader_epoch=1,
        topic_count=0,
        partition_count=0,
        nodes=nodes,
    )


def topic(*isrs: tuple[int, ...], replicas: tuple[int, ...] = (1, 2)) -> MetadataTopic:
    partitions = (
        MetadataPartition(number, -1 if not isr else isr[0], 0, replicas, isr)
        for number, isr in enumerate(isrs)
    )
    return MetadataTopic("t", ZERO_ID, tuple(partitions), {})


VOTERS = (node(3001, "voter"), node(3002, "leader"), node(3003, "voter"))
WHOLE = cluster(*VOTERS, node(1), node(2), node(1001))


def order(*node_ids: int, description: ClusterDescription = WHOLE) -> list[int]:
    return [each.node_id for each in plan_restart(description, (), node_ids)]


def test_brokers_come_first_and_the_active_controller_last() -> None:
    assert order() == [1, 2, 1001, 3001, 3003, 3002]


def test_only_those_named_are_restarted_each_once() -> None:
    assert order(3002, 2, 2, 3001) == [2, 3001, 3002]


def test_a_node_that_is_broker_and_controller_has_its_turn_among_the_controllers() -> None:
    both = (Role.BROKER, Role.CONTROLLER)
    combined = [node(each, "voter", roles=both) for each in (1, 2, 3)]
    assert order(description=cluster(*combined, node(4), controller_id=1)) == [4, 2, 3, 1]


@pytest.mark.parametrize("until_ms", [0, 1_700_000_000_000])
def test_nothing_is_restarted_while_ray_drains_the_machine_of_a_node(until_ms: int) -> None:
    drained = cluster(*VOTERS, node(1, drained_until_ms=until_ms), node(2))
    for wanted in ((), (1,), (2,)):
        with pytest.raises(UnavailableError, match=r"Ray drains the machine of c/1; nothing was restarted"):
            order(*wanted, description=drained)


def test_the_plan_says_which_partitions_have_no_other_replica_in_sync() -> None:
    steps = plan_restart(WHOLE, [topic((1, 2), (2,), ())], [1, 2])
    alone = (TopicPartition("t", 1),)
    assert steps == (RestartStep(1, "c/1"), RestartStep(2, "c/2", alone, below_min_isr=alone))


@pytest.mark.parametrize(
    ("isr", "replicas", "default", "own", "is_below"),
    [
        ((1, 2, 3), (1, 2, 3), 2, None, False),
        ((1, 2), (1, 2, 3), 2, None, True),
        ((1, 2), (1, 2, 3), 2, "1", False),
        ((1, 2, 3), (1, 2, 3), 1, "3", True),
        ((2, 3), (1, 2, 3), 2, None, False),  # it is not in sync: nothing is lost with it
        ((1, 2), (1, 2), 3, None, True),  # as many as there are replicas (B1)
        ((1,), (1,), 1, None, True),
    ],
)
def test_a_restart_that_takes_a_partition_below_its_min_isr_is_refused(  # B15
    isr: tuple[int, ...], replicas: tuple[int, ...], default: int, own: str | None, is_below: bool
) -> None:
    found = msgspec.structs.replace(
        topic(isr, replicas=replicas), configs={} if own is None else {"min.insync.replicas": own}
    )
    steps = plan_restart(WHOLE, [found], [1], default)
    assert [bool(each.below_min_isr) for each in steps] == [is_below]
    if is_below:
        with pytest.raises(
            UnavailableError, match=r"while c/1 restarts, 1 partitions, such as t-0, .* --force"
        ):
            refuse_below_min_isr(steps)
    else:
        refuse_below_min_isr(steps)


def test_the_plan_says_that_a_controller_is_the_only_voter() -> None:
    alone = cluster(node(1), node(3001, "leader"), node(3002, "observer"), controller_id=3001)
    steps = plan_restart(alone, (), ())
    assert [(each.node_id, each.is_only_voter) for each in steps] == [(1, False), (3002, False), (3001, True)]
    assert not any(each.is_only_voter for each in plan_restart(WHOLE, (), ()))


def test_an_unknown_node_is_named_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="cluster 'c' has no node 7; it has 3001, 3002, 3003, 1, 2, 1001"):
        order(1, 7)


@pytest.mark.parametrize("state", ["unreachable", "failed", "degraded", "starting"])
def test_nothing_is_restarted_while_another_node_is_away(state: str) -> None:
    one_away = cluster(*VOTERS, node(1), node(2, state=state))
    with pytest.raises(UnavailableError, match=f"found that c/2 is {state}; nothing was restarted"):
        order(1, description=one_away)


def test_a_failed_node_is_itself_restarted_unless_it_has_no_process() -> None:
    assert order(2, description=cluster(*VOTERS, node(1), node(2, state="failed"))) == [2]
    with pytest.raises(UnavailableError, match="c/2 is unreachable"):
        order(2, description=cluster(*VOTERS, node(1), node(2, state="unreachable")))


def test_a_node_is_behind_where_it_was_in_sync_and_is_not_any_more() -> None:
    assert replicas_in_sync([topic((1, 2), (2,))], 1) == {TopicPartition("t", 0)}
    before = {TopicPartition("t", number) for number in (0, 1, 7)}
    assert replicas_behind([topic((2,), (1, 2), (2,))], 1, before) == [TopicPartition("t", 0)]
    assert replicas_behind([topic((3,), replicas=(3,))], 1, before) == []  # moved to others meanwhile
