"""Groups of real consumers under faults: members come and go, coordinators and brokers die, and the group settles."""

from dataclasses import replace

import pytest

from rayka.coordinator.group_shard import OFFSETS_TOPIC
from rayka.sim.run_options import GroupPlan, TopicPlan, swarm
from rayka.sim.simulation import Simulation, Verdict

SECONDS = 15.0


@pytest.mark.sim
@pytest.mark.parametrize(("seed", "members", "coordinators"), [(3, 2, 1), (10, 3, 0), (11, 4, 0), (15, 2, 2)])
def test_a_group_keeps_what_it_committed_and_settles(
    seed: int, members: int, coordinators: int
) -> None:  # E1 E5 E10
    options = swarm(seed, seconds=SECONDS, members=members, coordinators=coordinators)
    assert options.topics
    simulation = Simulation(options)
    outcome = simulation.run()
    assert outcome.verdict is Verdict.OK, outcome
    groups = simulation.groups
    assert any(map(groups.history.committed_end, groups.partitions))


@pytest.mark.sim
@pytest.mark.parametrize("assignor", ["roundrobin", "sticky"])
def test_a_group_reads_what_its_topics_get_while_members_stand_still(assignor: str) -> None:  # E8 E10
    plan = GroupPlan(assignor=assignor, static_count=1, is_automatic=True, grows=True, has_zombies=True)
    topics = (TopicPlan("data0", 2, 2, {}),)
    options = swarm(
        7, seconds=SECONDS, members=3, coordinators=1, group=plan, topics=topics, voters=1, brokers=2
    )
    simulation = Simulation(options)
    outcome = simulation.run()
    assert outcome.verdict is Verdict.OK, outcome
    assert len(simulation.groups.partitions) > 2


@pytest.mark.sim
def test_coordinators_load_what_compaction_has_left() -> None:  # E17 F22
    options = swarm(12, seconds=SECONDS, members=3, coordinators=1, compacts_offsets=True)
    simulation = Simulation(options)
    outcome = simulation.run()
    assert outcome.verdict is Verdict.OK, outcome
    groups = simulation.groups
    assert any(map(groups.history.committed_end, groups.partitions))
    views = simulation.replication.views.values()
    offsets = [each.partition.log for each in views if each.partition.topic_partition.topic == OFFSETS_TOPIC]
    assert any(log.cleaned_offset > 0 for log in offsets)


@pytest.mark.sim
@pytest.mark.parametrize("seed", [1, 5])
def test_a_group_reads_topics_that_lose_records_while_brokers_come_and_go(seed: int) -> None:  # F11 F22 G16
    chosen = {"members": 3, "comers": 2, "coordinators": 2, "compacts": True, "expires": True}
    simulation = Simulation(swarm(seed, seconds=SECONDS, **chosen))
    outcome = simulation.run()
    assert outcome.verdict is Verdict.OK, outcome
    groups, truths = simulation.groups, simulation.replication.truths.values()
    assert any(map(groups.history.committed_end, groups.partitions))
    topics = {each.topic for each in groups.partitions}
    read = [each for each in truths if each.name.rpartition("-")[0] in topics]
    assert any(each.compacted for each in read)
    assert any(each.log_start_offset for each in read)


def test_one_group_in_three_has_its_offsets_compacted_and_is_else_the_same() -> None:
    drawn = [each for seed in range(400) if (each := swarm(seed)).members]
    compacted = [each for each in drawn if each.compacts_offsets]
    assert 0.2 <= len(compacted) / len(drawn) <= 0.42
    for each in compacted:
        plain = swarm(each.seed, compacts_offsets=False)
        assert replace(each, compacts_offsets=False, config=plain.config) == plain
        assert each.config.items() > plain.config.items()
        assert each.config["offsets_topic_segment_bytes"] == 1_200


def test_a_run_that_ends_while_members_stand_still_leaves_none_of_their_tasks() -> None:
    topics = (TopicPlan("data0", 2, 2, {}),)
    options = swarm(7, seconds=SECONDS, members=2, coordinators=1, topics=topics, voters=1, brokers=2)
    simulation = Simulation(options)
    simulation.begin()
    simulation.run_until_ms(3_000)
    members = simulation.groups.members
    for each in members:
        each.process.is_paused = True
    simulation.run_until_ms(4_000)
    tasks = [task for each in members for task in each.tasks]
    assert [each.done() for each in tasks] == [False, False]
    simulation.close()
    assert [each.done() for each in tasks] == [True, True]


@pytest.mark.sim
def test_a_coordinator_that_has_less_in_the_end_than_it_acknowledged_is_found() -> None:  # E10
    topics = (TopicPlan("data0", 2, 2, {}),)
    options = swarm(7, seconds=3.0, members=2, coordinators=1, topics=topics, voters=1, brokers=2)
    simulation = Simulation(options)
    simulation.begin()
    simulation.run_safety()
    simulation.run_liveness()
    assert simulation.outcome().verdict is Verdict.OK
    groups, machines = simulation.groups, simulation.cluster.brokers
    assert groups.check_stored(machines) == ""
    found = [offsets for each in machines if (offsets := groups.stored_on(each)) is not None]
    assert len(found) == 1
    assert len(found[0]) == 2
    found[0].clear()
    assert "was acknowledged" in groups.check_stored(machines)
    simulation.close()


def test_seeds_draw_groups_of_all_kinds() -> None:
    drawn = [swarm(seed) for seed in range(400)]
    grouped = [each for each in drawn if each.members]
    assert 80 <= len(grouped) <= 160
    assert all(each.topics for each in grouped)
    for name in ("compacts", "expires", "comers"):
        assert 4 <= sum(bool(getattr(each, name)) for each in grouped) <= 30, name
    assert all(2 <= each.members <= 4 and 1 <= each.coordinators <= 2 for each in grouped)
    assert {each.group.assignor for each in grouped} == {
        "range",
        "roundrobin",
        "sticky",
        "cooperative-sticky",
    }
    for name in ("static_count", "is_automatic", "grows", "has_zombies"):
        assert len({bool(getattr(each.group, name)) for each in grouped}) == 2
    assert not any(each.coordinators for each in drawn if not each.members)
