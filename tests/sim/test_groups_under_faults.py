"""Groups of real consumers under faults: members come and go, coordinators and brokers die, and the group settles."""

import pytest

from rayka.sim.group_plan import GroupPlan
from rayka.sim.run_options import TopicPlan, swarm
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
    assert simulation.groups.history.committed_count > 0


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


def test_seeds_draw_groups_of_all_kinds() -> None:
    drawn = [swarm(seed) for seed in range(400)]
    grouped = [each for each in drawn if each.members]
    assert 80 <= len(grouped) <= 160
    assert all(each.topics and not each.compacts for each in grouped)
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
