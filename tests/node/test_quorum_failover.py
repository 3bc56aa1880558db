"""Several controllers in one process: one is active, the others can be, and nothing that was promised is lost."""

import threading
import time
from contextlib import suppress
from random import Random

import pytest

import rayka
from rayka.client import io_thread
from rayka.errors import (
    ErrorCode,
    NetworkException,
    NotController,
    RetriableApiError,
    UnavailableError,
)
from rayka.protocol.membership import MetadataRequest, NodeState
from rayka.protocol.quorum_messages import DescribeQuorumRequest, ResignRequest
from tests.node.quorum_support import (
    CONTROLLERS,
    QUICK,
    ask,
    create,
    isolate,
    others,
    quorum,
    status,
    topics,
)

BROKER = 1


def wait_for(condition: object, what: str) -> None:
    """Returns when the condition, a function, holds."""
    assert callable(condition)
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, what
        threading.Event().wait(0.005)


# ---- Which controller is active --------------------------------------------------------------------------------------


def test_one_controller_is_active_and_all_say_which() -> None:  # A1
    with quorum() as cluster:
        active = cluster.await_active_controller()
        wait_for(
            lambda: {status(cluster, each).leader_id for each in CONTROLLERS} == {active},
            "all know the leader",
        )
        found = [status(cluster, each) for each in CONTROLLERS]
        assert len({each.leader_epoch for each in found}) == 1
        assert [(each.state, each.detail) for each in found] == [(NodeState.RUNNING, "")] * 3
        described = ask(cluster, active, DescribeQuorumRequest())
        assert [voter.replica.node_id for voter in described.voters] == list(CONTROLLERS)
        assert BROKER in [observer.replica.node_id for observer in described.observers]


def test_a_controller_that_is_not_active_names_the_one_that_is() -> None:
    with quorum() as cluster:
        active = cluster.await_active_controller()
        for each in others(active):
            with pytest.raises(NotController, match=f"controller-{each} does not lead") as caught:
                create(cluster, "orders", each)
            assert caught.value.leader_id == active
            assert caught.value.leader_epoch == status(cluster, active).leader_epoch


# ---- Failing over ----------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_is_known_to_the_successor() -> None:  # A65
    with quorum() as cluster:
        for number in range(3):
            active = cluster.await_active_controller()
            create(cluster, f"before-{number}")
            cluster.kill(active)
            create(cluster, f"after-{number}")
            cluster.restart(active)
        assert topics(cluster) == [f"{when}-{n}" for when in ("after", "before") for n in range(3)]


def test_topics_created_while_the_active_controller_is_killed_are_all_there() -> None:  # A65, A66
    acknowledged: list[str] = []
    with quorum() as cluster:

        def create_topics() -> None:
            with rayka.Admin(cluster=cluster, retry_backoff_ms=5) as admin:
                for number in range(30):
                    admin.create_topic(f"topic-{number:02d}")
                    acknowledged.append(f"topic-{number:02d}")

        creating = threading.Thread(target=create_topics)
        creating.start()
        for count in (5, 15):
            wait_for(lambda count=count: len(acknowledged) >= count, f"{count} topics")
            active = cluster.await_active_controller()
            cluster.kill(active)
            cluster.await_active_controller()
            cluster.restart(active)
        creating.join(60)
        assert len(acknowledged) == 30
        assert topics(cluster) == acknowledged


def test_a_leader_that_was_cut_off_takes_back_what_was_never_committed() -> None:  # A66, A36
    with quorum() as cluster:
        cut_off = cluster.await_active_controller()
        create(cluster, "before")
        isolate(cluster, cut_off)
        first, second = others(cut_off)
        missing = f"no leader answers; voters that do not answer: controller-{first}, controller-{second}"
        with pytest.raises(NotController, match=f"controller-{cut_off} leads no more; {missing}") as raised:
            create(cluster, "lost", cut_off)
        assert raised.value.may_have_run
        with pytest.raises(NotController, match=f"controller-{cut_off} does not lead; {missing}") as raised:
            create(cluster, "lost", cut_off)
        assert not raised.value.may_have_run
        create(cluster, "after")
        cluster.heal()
        wait_for(lambda: status(cluster, cut_off).leader_id in others(cut_off), "it follows")
        cluster.kill(cluster.await_active_controller())  # now it is needed, as voter or as leader
        assert topics(cluster) == ["after", "before"]


def test_the_sessions_of_brokers_begin_anew_with_a_successor() -> None:  # A67
    with quorum(brokers=2, broker_session_timeout_ms=3_000, broker_heartbeat_interval_ms=100) as cluster:
        silent, active = 2, cluster.await_active_controller()
        cluster.kill(silent)
        cluster.kill(active)

        def fenced() -> list[int]:
            """As the active controller knows it, which on a busy machine may be a successor's successor."""
            while True:
                successor = cluster.await_active_controller()
                with suppress(NotController):
                    brokers = ask(cluster, successor, MetadataRequest(())).brokers
                    return [each.node_id for each in brokers if each.is_fenced]

        assert fenced() == []
        wait_for(lambda: fenced() == [silent], "the session of the broker that is gone ends")


def test_while_idle_the_active_controller_shows_that_it_commits() -> None:  # A68
    with quorum() as cluster:
        active = cluster.await_active_controller()
        before = status(cluster, active).high_watermark
        wait_for(lambda: status(cluster, active).high_watermark >= before + 3, "no-ops")
    with quorum(controllers=1, metadata_max_idle_interval_ms=0) as cluster:
        before = status(cluster, 3001).log_end_offset
        create(cluster, "orders")
        assert status(cluster, 3001).log_end_offset == before + 2  # topic and partition, no no-op


def test_brokers_follow_the_successor_at_once() -> None:
    with quorum() as cluster:
        active = cluster.await_active_controller()
        cluster.kill(active)
        successor = cluster.await_active_controller()
        elected_s = time.monotonic()
        create(cluster, "orders")
        wait_for(
            lambda: [each.name for each in ask(cluster, BROKER, MetadataRequest()).topics] == ["orders"],
            "the broker knows it",
        )
        assert time.monotonic() - elected_s < 10  # 0.01 s on a quiet machine
        assert ask(cluster, BROKER, MetadataRequest(())).controller_id == successor


# ---- The end of a controller -----------------------------------------------------------------------------------------


def test_a_controlled_stop_hands_the_lead_over_before_any_timeout() -> None:  # A22, A23
    slow = {"controller_quorum_fetch_timeout_ms": 60_000, "controller_quorum_election_timeout_ms": 2_000}
    with quorum(brokers=0, controllers=3, **slow) as cluster:
        active = cluster.await_active_controller()
        epoch = status(cluster, active).leader_epoch
        began_s = time.monotonic()
        cluster.restart(active)
        successor = cluster.await_active_controller()
        assert successor != active
        assert status(cluster, successor).leader_epoch > epoch
        assert time.monotonic() - began_s < 30  # half of the fetch timeout; 0.1 s on a quiet machine


def test_a_leader_that_is_asked_to_resigns_for_the_voter_that_is_named_and_goes_on() -> None:  # A22
    slow = {"controller_quorum_fetch_timeout_ms": 60_000, "controller_quorum_election_timeout_ms": 2_000}
    with quorum(brokers=0, controllers=3, **slow) as cluster:
        active = cluster.await_active_controller()
        epoch = status(cluster, active).leader_epoch
        wanted = others(active)[-1]
        answer = ask(cluster, active, ResignRequest(epoch - 1, (wanted,)))
        assert answer.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert status(cluster, active).leader_epoch == epoch, "it is of another epoch"
        assert ask(cluster, active, ResignRequest(epoch, (wanted,))).error_code is ErrorCode.NONE
        wait_for(lambda: status(cluster, active).leader_id == wanted, "the one that was named leads")
        assert status(cluster, active).state is NodeState.RUNNING


def test_all_controllers_are_killed_and_come_back_with_everything() -> None:
    with quorum() as cluster:
        create(cluster, "orders")
        epoch = status(cluster, cluster.await_active_controller()).leader_epoch
        for each in CONTROLLERS:
            cluster.kill(each)
        for each in CONTROLLERS:
            cluster.restart(each)
        assert topics(cluster) == ["orders"]
        assert status(cluster, cluster.await_active_controller()).leader_epoch > epoch
        create(cluster, "flights")


def test_a_voter_starts_without_waiting_for_the_others() -> None:
    with quorum() as cluster:
        for each in CONTROLLERS:
            cluster.kill(each)
        cluster.restart(3001)
        assert status(cluster, 3001).state is NodeState.RUNNING
        missing = "no leader answers; voters that do not answer: controller-3002, controller-3003"
        wait_for(lambda: status(cluster, 3001).detail == missing, "it misses them")
        cluster.restart(3002)
        create(cluster, "orders")
        cluster.restart(3003)
        assert topics(cluster) == ["orders"]


# ---- Partitions ------------------------------------------------------------------------------------------------------


def test_a_voter_that_was_cut_off_catches_up() -> None:  # A33
    with quorum() as cluster:
        active = cluster.await_active_controller()
        cut_off, _ = others(active)
        isolate(cluster, cut_off)
        for number in range(5):
            create(cluster, f"topic-{number}")
        assert status(cluster, cut_off).high_watermark < status(cluster, active).high_watermark
        cluster.heal()
        end = status(cluster, cluster.await_active_controller()).high_watermark
        wait_for(lambda: status(cluster, cut_off).high_watermark >= end, "it has everything")


def test_a_vote_that_is_taken_or_given_is_told_of() -> None:
    with quorum() as cluster, rayka.Admin(cluster=cluster, retry_backoff_ms=5) as admin:
        voter = others(cluster.await_active_controller())[0]

        def told() -> list[tuple[str, str]]:
            return [(each.kind, *each.subjects) for each in admin.events() if each.kind.startswith("voter")]

        admin.remove_raft_voter(voter)
        wait_for(lambda: told() == [("voter-removed", f"controller-{voter}")], "its vote is taken")
        admin.add_raft_voter(voter)
        wait_for(lambda: told()[1:] == [("voter-added", f"controller-{voter}")], "its vote is given back")


def test_without_a_quorum_a_broker_tells_what_happened() -> None:
    with quorum() as cluster, rayka.Admin(cluster=cluster, retry_backoff_ms=5) as admin:
        active = cluster.await_active_controller()
        wait_for(
            lambda: any(each.kind == "controller-leads" for each in admin.events()), "its lead is told of"
        )
        known = admin.events()
        for each in others(active):
            cluster.kill(each)
        wait_for(lambda: status(cluster, active).leader_id < 0, "nobody leads")
        assert admin.events() == known
        assert admin.events(since=known[0].number, count=1) == known[-1:]


def test_a_quorum_without_majority_refuses_in_time_and_names_the_missing_voters() -> None:
    with quorum() as cluster:
        active = cluster.await_active_controller()
        for each in others(active):
            cluster.kill(each)
        first, second = others(active)
        with pytest.raises(RetriableApiError, match=f"not answer: controller-{first}, controller-{second}"):
            create(cluster, "orders", active)
        with rayka.Admin(cluster=cluster, default_api_timeout_ms=500, retry_backoff_ms=20) as admin:
            with pytest.raises(
                UnavailableError, match=f"not answer: controller-{first}, controller-{second}"
            ):
                admin.create_topic("orders")
        cluster.restart(first)
        create(cluster, "flights")


def test_clients_and_brokers_find_their_way_through_partitions() -> None:
    random = Random(7)
    with quorum() as cluster, rayka.Admin(cluster=cluster, retry_backoff_ms=10) as admin:
        for number in range(4):
            isolate(cluster, random.choice(CONTROLLERS))
            admin.create_topic(f"topic-{number}")
            cluster.heal()
        assert sorted(admin.list_topics()) == [f"topic-{number}" for number in range(4)]


def test_what_is_sent_through_a_partition_arrives_when_it_heals() -> None:
    with quorum(brokers=0, controllers=1) as cluster:

        async def scenario() -> None:
            parted, client = cluster.nodes.switch.network(7), cluster.network()
            cluster.nodes.switch.part(7, 3001)
            with pytest.raises(RetriableApiError, match="did not answer"):
                await parted.call(3001, DescribeQuorumRequest(), 20)
            await client.call(3001, DescribeQuorumRequest(), 5_000)
            waiting = io_thread.asyncio.ensure_future(parted.call(3001, DescribeQuorumRequest(), 5_000))
            await io_thread.asyncio.sleep(0)
            assert not waiting.done()
            cluster.nodes.switch.heal()
            assert (await waiting).leader_id == 3001

        io_thread.run(scenario, 10)


def test_a_killed_controller_is_not_there() -> None:
    with quorum(brokers=0) as cluster:
        cluster.kill(3003)
        with pytest.raises(NetworkException, match="controller-3003 cannot be reached"):
            status(cluster, 3003)
        assert QUICK
