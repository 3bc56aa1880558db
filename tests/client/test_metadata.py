"""What a client knows of its cluster, and how it asks."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

import pytest

from rayka.client.bootstrap import resolve
from rayka.client.metadata import ClusterMetadata
from rayka.client.retry import Backoff
from rayka.config.client_config import AdminConfig
from rayka.errors import NetworkException, NoSuchTopic, NotController, UnavailableError
from rayka.ids import Role
from rayka.protocol.membership import (
    MetadataRequest,
    MetadataTopic,
    NodeState,
    StatusRequest,
    StatusResponse,
)
from tests.client.support import BROKER, CONTROLLER, OTHER, ScriptedCluster

ResultT = TypeVar("ResultT")
WAIT_MS = 5_000


def asked(
    cluster: ScriptedCluster,
    call: Callable[[ClusterMetadata], Awaitable[ResultT]],
    *,
    max_age_ms: int = 300_000,
    request_timeout_ms: int = 30_000,
) -> ResultT:
    config = AdminConfig(
        retry_backoff_ms=1,
        retry_backoff_max_ms=2,
        metadata_max_age_ms=max_age_ms,
        request_timeout_ms=request_timeout_ms,
    )

    async def run() -> ResultT:
        return await call(ClusterMetadata(cluster.network(), cluster.name, config, Random(1)))

    return asyncio.run(run())


def test_a_topic_is_asked_for_once_and_kept():
    async def twice(metadata: ClusterMetadata) -> int:
        first, second = [await metadata.topic("orders", WAIT_MS) for _ in range(2)]
        assert first is second is metadata.cached("orders")
        return len(first.partitions)

    cluster = ScriptedCluster()
    assert asked(cluster, twice) == 3
    assert cluster.metadata_calls == 1


def test_callers_that_ask_at_the_same_time_share_one_request():
    async def together(metadata: ClusterMetadata) -> None:
        await asyncio.gather(*(metadata.topic(name, WAIT_MS) for name in ("a", "b", "c") for _ in range(10)))

    cluster = ScriptedCluster({"a": 1, "b": 1, "c": 1})
    asked(cluster, together)
    assert cluster.metadata_calls == 1


def test_an_old_topic_is_asked_for_again_in_the_background():
    async def later(metadata: ClusterMetadata) -> None:
        known: MetadataTopic | None = await metadata.topic("orders", WAIT_MS)
        cluster.topics["orders"] = 5
        async with asyncio.timeout(WAIT_MS / 1000):
            while known and len(known.partitions) == 3:  # what is known is used meanwhile
                await asyncio.sleep(0)
                known = metadata.cached("orders")
        assert known
        assert len(known.partitions) == 5

    cluster = ScriptedCluster()
    asked(cluster, later, max_age_ms=1)


def test_only_the_controller_says_that_a_topic_does_not_exist():
    cluster = ScriptedCluster()
    cluster.topics_at_broker = {}
    assert asked(cluster, lambda metadata: metadata.topic("orders", WAIT_MS)).name == "orders"


@pytest.mark.parametrize(
    ("known", "hint"),
    [
        ({"orders": 1, "x": 1}, "the nearest name is 'orders'"),
        ({"abc": 1, "def": 1}, "it has abc, def"),
        (
            {f"topic-{n}": 1 for n in range(9)},
            "it has topic-0, topic-1, topic-2, topic-3, topic-4 and 4 more",
        ),
    ],
)
def test_an_unknown_topic_is_an_error_at_once_that_says_what_there_is(known: dict[str, int], hint: str):
    with pytest.raises(NoSuchTopic, match=f"'scripted' has no topic 'order': {hint}; create it") as caught:
        asked(ScriptedCluster(known), lambda metadata: metadata.topic("order", WAIT_MS))
    assert not caught.value.retriable


def test_a_cluster_without_topics_says_so():
    cluster = ScriptedCluster()
    cluster.topics.clear()
    with pytest.raises(NoSuchTopic, match="it has no topics"):
        asked(cluster, lambda metadata: metadata.topic("orders", WAIT_MS))


def test_a_topic_that_is_gone_is_forgotten():
    async def gone(metadata: ClusterMetadata) -> None:
        await metadata.topic("orders", WAIT_MS)
        del cluster.topics["orders"]
        assert await metadata.refresh(("orders",)) is None
        assert metadata.cached("orders") is None
        assert isinstance(metadata.missing("orders"), NoSuchTopic)

    cluster = ScriptedCluster({"orders": 1, "other": 1})
    asked(cluster, gone)


def test_when_no_node_answers_the_error_names_the_nodes_asked():
    cluster = ScriptedCluster()
    cluster.is_down = True
    asked_all = "'scripted' is not available: asked broker-1, broker-2, controller-3001; last error.*running"
    with pytest.raises(UnavailableError, match=asked_all):
        asked(cluster, lambda metadata: metadata.topic("orders", 20))
    with pytest.raises(UnavailableError, match="the active controller did not answer"):
        asked(cluster, lambda metadata: metadata.nodes.call_controller(MetadataRequest(), 20))


def test_an_error_asks_whether_the_cluster_runs_only_if_no_broker_answers():
    cluster = ScriptedCluster()
    cluster.dead.append(CONTROLLER)
    with pytest.raises(UnavailableError, match=r"did not answer: .*; a majority of its controllers must run"):
        asked(cluster, lambda metadata: metadata.nodes.call_controller(MetadataRequest(), 20))


def test_what_is_awaited_for_seconds_is_told_once(caplog: pytest.LogCaptureFixture):
    cluster = ScriptedCluster()
    cluster.hung.append(CONTROLLER)
    with pytest.raises(UnavailableError):
        asked(cluster, lambda metadata: metadata.nodes.call_controller(MetadataRequest(), 3_200))
    # An earlier test's event loop may say something when it is collected.
    said = [each.message for each in caplog.records if each.name.startswith("rayka")]
    assert said == ["cluster 'scripted': still waiting for controller-3001"]


def test_a_broker_that_lags_does_not_take_back_what_is_known():
    async def lagging(metadata: ClusterMetadata) -> None:
        cluster.move_leaders(OTHER)
        cluster.fenced.append(BROKER)
        assert (await metadata.topic("orders", WAIT_MS)).partitions[0].leader_id == OTHER
        cluster.leader_id, cluster.leader_epoch, cluster.metadata_offset = BROKER, 0, 7
        cluster.fenced.clear()
        await metadata.refresh(("orders",))
        known = metadata.cached("orders")
        assert known
        assert known.partitions[0].leader_id == OTHER
        assert [each.is_fenced for each in metadata.nodes.brokers] == [True, False]

    cluster = ScriptedCluster()
    asked(cluster, lagging)


def test_a_partition_that_is_not_known_yet_is_asked_for():
    async def added(metadata: ClusterMetadata) -> None:
        assert len((await metadata.topic_with("orders", 2, WAIT_MS)).partitions) == 3
        cluster.topics["orders"] = 5
        assert len((await metadata.topic_with("orders", 2, WAIT_MS)).partitions) == 3
        assert len((await metadata.topic_with("orders", 3, WAIT_MS)).partitions) == 5

    cluster = ScriptedCluster()
    asked(cluster, added)


def test_a_cluster_that_was_made_anew_under_its_name_is_known_anew():
    """Its metadata log is shorter than that of the former one."""

    async def twice(metadata: ClusterMetadata) -> None:
        cluster.metadata_offset = 900
        await metadata.topic("orders", WAIT_MS)
        cluster.cluster_id, cluster.metadata_offset = "another", 7
        cluster.move_leaders(OTHER)
        await metadata.refresh(("payments",))
        assert metadata.cached("orders") is None
        assert (await metadata.topic("orders", WAIT_MS)).partitions[0].leader_id == OTHER

    cluster = ScriptedCluster({"orders": 3, "payments": 1})
    asked(cluster, twice)


def test_a_caller_that_is_cancelled_leaves_the_question_to_those_that_share_it():
    async def together(metadata: ClusterMetadata) -> None:
        asking = [asyncio.ensure_future(metadata.refresh(("orders",))) for _ in range(2)]
        await asyncio.sleep(0)
        asking[0].cancel()
        assert await asking[1] is None

    cluster = ScriptedCluster()
    asked(cluster, together)
    assert cluster.metadata_calls == 1


def test_a_topic_that_comes_back_is_missing_no_more():
    async def back(metadata: ClusterMetadata) -> None:
        await metadata.topic("orders", WAIT_MS)
        partition_count = cluster.topics.pop("orders")
        await metadata.refresh(("orders",))
        assert isinstance(metadata.missing("orders"), NoSuchTopic)
        cluster.topics["orders"] = partition_count
        await metadata.refresh(("orders",))
        assert metadata.missing("orders") is None

    cluster = ScriptedCluster()
    asked(cluster, back)


def test_a_node_that_failed_is_asked_after_the_others():
    async def doubting(metadata: ClusterMetadata) -> None:
        await metadata.topic("orders", WAIT_MS)
        cluster.hung.append(BROKER)
        metadata.nodes.on_unanswered(BROKER)
        async with asyncio.timeout(WAIT_MS / 2000):
            assert await metadata.refresh(("orders",)) is None

    cluster = ScriptedCluster()
    asked(cluster, doubting)


@pytest.mark.parametrize("state", ["dead", "hung"])
def test_a_change_does_not_wait_for_a_broker_that_serves_no_client(state: str):
    async def change(metadata: ClusterMetadata) -> None:
        await metadata.nodes.call_controller(MetadataRequest(), WAIT_MS)
        getattr(cluster, state).append(OTHER)
        cluster.fenced.append(OTHER)  # the client does not know it
        await metadata.nodes.wait_until_applied(7, WAIT_MS)

    cluster = ScriptedCluster()
    asked(cluster, change, request_timeout_ms=50)


def test_the_controller_is_found_and_asked():
    async def find(metadata: ClusterMetadata) -> int:
        response = await metadata.nodes.call_controller(MetadataRequest(()), WAIT_MS)
        return response.controller_id

    assert asked(ScriptedCluster(), find) == CONTROLLER


class FailingOver(ScriptedCluster):
    """The broker still names the old controller; that one is gone, or names the next, and one of the others leads."""

    def __init__(self, old: Exception) -> None:
        super().__init__()
        self.old = old
        self.called: list[int] = []

    async def node_ids(self) -> Sequence[int]:
        return [BROKER, CONTROLLER, CONTROLLER + 1, CONTROLLER + 2]

    async def call(self, node_id: int, request: object, timeout_ms: int) -> object:
        if isinstance(request, StatusRequest):
            if node_id == CONTROLLER:
                raise NetworkException("gone")
            return StatusResponse(
                node_id, (Role.CONTROLLER,), NodeState.RUNNING, 1, "here", (), leader_id=CONTROLLER + 2, leader_epoch=6
            )  # fmt: skip
        if node_id >= CONTROLLER:
            self.called.append(node_id)
        if node_id == CONTROLLER:
            raise self.old
        return await super().call(node_id, request, timeout_ms)


@pytest.mark.parametrize(
    "old", [NetworkException("gone"), NotController("resigned", CONTROLLER + 2, 6), NotController("resigned")]
)
def test_a_controllers_successor_is_found_before_the_brokers_know_it(old: Exception):
    cluster = FailingOver(old)
    asked(cluster, lambda metadata: metadata.nodes.call_controller(MetadataRequest(()), WAIT_MS))
    assert cluster.called == [CONTROLLER, CONTROLLER + 2]


def test_the_controller_of_a_cluster_that_was_made_anew_is_called_though_its_epochs_are_lower():
    """The former one's controller was another, of a much later epoch."""

    async def twice(metadata: ClusterMetadata) -> None:
        await metadata.nodes.call_controller(MetadataRequest(()), WAIT_MS)
        metadata.nodes.active.learn(CONTROLLER, 100)
        cluster.cluster_id = "another"
        await metadata.nodes.call_controller(MetadataRequest(()), WAIT_MS)

    cluster = FailingOver(NetworkException("gone"))
    asked(cluster, twice)
    assert cluster.called[:2] == [CONTROLLER, CONTROLLER + 2]
    assert cluster.called[2:] == [
        CONTROLLER,
        CONTROLLER,
        CONTROLLER + 2,
    ]  # as learnt, as named anew, as found


def test_a_broker_that_does_not_answer_is_passed_over():
    class HalfDown(ScriptedCluster):
        async def call(self, node_id: int, request: MetadataRequest, timeout_ms: int) -> object:
            self.is_down = node_id == BROKER
            return await super().call(node_id, request, timeout_ms)

    assert asked(HalfDown(), lambda metadata: metadata.topic("orders", WAIT_MS)).name == "orders"


def test_pauses_double_up_to_the_longest_with_a_fifth_of_jitter():  # G18
    backoff = Backoff(AdminConfig(), Random(1))
    for count, expected_ms in enumerate([100, 200, 400, 800, 1_000, 1_000], start=1):
        pauses = [backoff.pause_ms(count) for _ in range(200)]
        assert 0.8 * expected_ms <= min(pauses) < 0.85 * expected_ms
        assert 1.15 * expected_ms < max(pauses) <= 1.2 * expected_ms
    assert backoff.pause_ms(10_000) <= 1_200


def test_a_cluster_is_a_name_or_a_handle():
    cluster = ScriptedCluster()
    assert resolve(cluster) is cluster
    with pytest.raises(TypeError, match=r"cluster: expected a name or a rayka.Cluster, found int"):
        resolve(5)  # type: ignore[arg-type]


# ---- What is forgotten (KIP-526) ----


def idle_metadata(
    cluster: ScriptedCluster, *, max_age_ms: int = 50, max_idle_ms: int = 300_000
) -> ClusterMetadata:
    config = AdminConfig(retry_backoff_ms=1, metadata_max_age_ms=max_age_ms, metadata_max_idle_ms=max_idle_ms)
    return ClusterMetadata(cluster.network(), cluster.name, config, Random(1))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  time has to pass
            await asyncio.sleep(0.005)


def test_topics_that_are_gone_are_forgotten_though_only_another_one_is_used():
    async def work() -> None:
        metadata = idle_metadata(cluster)
        gone: list[str] = []
        metadata.listen(lambda topic: None, on_gone=gone.append)
        for name in names:
            await metadata.topic(name, WAIT_MS)
        for name in names[1:]:
            del cluster.topics[name]
        await until(lambda: metadata.cached("orders") is not None and len(gone) == 20)
        assert sorted(gone) == sorted(names[1:])
        assert list(metadata._topics) == ["orders"]
        missing = metadata.missing("job-3")
        assert missing is None or "job-3" in str(missing)

    names = ["orders", *(f"job-{number}" for number in range(20))]
    cluster = ScriptedCluster(dict.fromkeys(names, 3))
    asyncio.run(work())


def test_a_topic_that_is_not_used_is_forgotten_unless_its_user_keeps_it():
    async def work() -> None:
        metadata = idle_metadata(cluster, max_idle_ms=40)
        asked: list[str] = []

        def may_forget(name: str) -> bool:
            asked.append(name)
            return name != "kept"

        metadata.listen(lambda topic: None, may_forget=may_forget)
        for name in ("orders", "kept", "idle"):
            await metadata.topic(name, WAIT_MS)
        await until(lambda: metadata.cached("orders") is not None and metadata.last_known("idle") is None)
        assert metadata.last_known("kept") is not None
        assert "orders" not in asked
        assert (await metadata.topic("idle", WAIT_MS)).name == "idle"

    cluster = ScriptedCluster(dict.fromkeys(("orders", "kept", "idle"), 3))
    asyncio.run(work())


def test_an_idle_topic_is_not_asked_for_for_ever():
    async def work() -> int:
        metadata = idle_metadata(cluster, max_age_ms=20, max_idle_ms=60)
        for name in ("orders", "idle"):
            await metadata.topic(name, WAIT_MS)
        await until(lambda: metadata.cached("orders") is not None and metadata.last_known("idle") is None)
        return cluster.metadata_calls

    cluster = ScriptedCluster(dict.fromkeys(("orders", "idle"), 3))
    assert asyncio.run(work()) > 1
