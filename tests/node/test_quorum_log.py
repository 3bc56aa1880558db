"""The driver of the quorum and the shard on it: what is durable before what is said, and what a change of leaders does.

The shard is a counter, so nothing here depends on controllers.
"""

import asyncio
import re
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from rayka.errors import ErrorCode, InconsistentClusterId, NetworkException, NotController, StorageError
from rayka.ids import METADATA_TOPIC_ID, OffsetAndEpoch, ReplicaKey
from rayka.node.quorum_directory import format_controller
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch, split_batches
from rayka.protocol.caller import Caller
from rayka.protocol.fetch import FetchPartition, FetchPartitionResult, FetchRequest, FetchResponse
from rayka.protocol.quorum_messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    VoteRequest,
)
from rayka.raft.control_records import LeaderChangeRecord, encode_control_batch
from rayka.raft.election_state import ElectionState, decode_election
from rayka.raft.snapshot import encode_snapshot
from rayka.testing.in_process_network import InProcessNetwork
from rayka.testing.memory_disk import MemoryDisk
from tests.node.controller_support import Crashes, HeldDisk
from tests.node.log_support import CONFIG, VOTERS, CounterNode, Counters, Silence, format_voter, run, until


async def alone(disk: MemoryDisk, network: Silence | None = None, **changes: Any) -> CounterNode:
    """Voter 3001 of three; the others do not answer."""
    node = CounterNode(disk, network or Silence(), 3001, **changes)
    await format_voter(node.settings)
    await node.start()
    return node


def stored(disk: MemoryDisk, node: CounterNode) -> ElectionState | None:
    path = node.driver.directory.election_path
    return decode_election(disk.read_at(path, 0, disk.size(path))) if disk.exists(path) else None


def vote_request(epoch: int, candidate: int = 3002) -> VoteRequest:
    replica, voter = (next(each for each in VOTERS.voters if each.node_id == id) for id in (candidate, 3001))
    return VoteRequest("counters", replica, epoch, voter, 0, 0, is_pre_vote=False)


# ---- Persist, then send ----------------------------------------------------------------------------------------------


def test_a_vote_is_durable_before_it_is_sent() -> None:  # A8, A19
    async def scenario() -> None:
        disk = HeldDisk()
        node = await alone(disk)
        disk.is_open.clear()
        asked = asyncio.create_task(node.handle(vote_request(epoch=5)))
        await asyncio.sleep(0.02)
        assert not asked.done()
        assert stored(disk, node) is None
        disk.is_open.set()
        response = await asked
        assert (response.is_granted, response.leader_epoch) == (True, 5)
        disk.power_loss(Random(1))
        found = stored(disk, node)
        assert found is not None
        assert (found.leader_epoch, found.voted_key) == (5, VOTERS.voters[1])

    run(scenario())


def test_a_voter_that_was_killed_after_its_vote_does_not_vote_for_another() -> None:  # A8, A9
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await alone(disk)
        assert (await node.handle(vote_request(5))).is_granted
        node.kill()
        disk.power_loss(Random(1))
        again = CounterNode(disk, Silence(), 3001)
        await again.start()
        assert not (await again.handle(vote_request(5, candidate=3003))).is_granted
        assert (await again.handle(vote_request(5, candidate=3002))).is_granted

    run(scenario())


def test_nothing_is_sent_in_an_epoch_before_it_is_durable() -> None:  # A8
    async def scenario() -> None:
        disk, network = HeldDisk(), Silence()
        node = await alone(disk, network)
        await until(lambda: bool(network.sent))
        disk.is_open.clear()
        adopting = asyncio.create_task(
            node.handle(BeginQuorumEpochRequest("counters", 3002, 7, VOTERS.voters[0]))
        )
        await asyncio.sleep(0)
        count = len(network.sent)
        await asyncio.sleep(0.1)
        assert not any(isinstance(each, FetchRequest) for _, each in network.sent[count:])
        assert not adopting.done()
        disk.is_open.set()
        await adopting
        await until(lambda: bool(any(isinstance(each, FetchRequest) for _, each in network.sent)))

    run(scenario())


class LeaderWithOneBatch(Silence):
    """Answers as the leader of epoch 7: a first fetch gets its first batch, later ones wait for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: list[int] = []

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if not isinstance(request, FetchRequest) or node_id != 3002:
            return await super().call(node_id, request, timeout_ms)
        (partition,) = request.partitions
        self.offsets.append(partition.fetch_offset)
        if partition.fetch_offset > 0:
            return await asyncio.Event().wait()
        first = encode_control_batch([LeaderChangeRecord(3002, VOTERS.voters, ())], timestamp_ms=1)
        records = b"".join(map(bytes, RecordBatch(first).stamped(base_offset=0, leader_epoch=7)))
        result = FetchPartitionResult(
            METADATA_TOPIC_ID, 0, leader_id=3002, leader_epoch=7, next_offset=1, log_start_offset=0,
            records=np.frombuffer(records, np.uint8),
        )  # fmt: skip
        return FetchResponse((result,))


def test_a_follower_fetches_again_only_when_what_it_has_is_durable() -> None:  # A34
    async def scenario() -> None:
        disk, network = HeldDisk(), LeaderWithOneBatch()
        node = await alone(disk, network)
        await node.handle(BeginQuorumEpochRequest("counters", 3002, 7, VOTERS.voters[0]))
        disk.is_open.clear()
        await until(lambda: node.driver.directory.log.log_end_offset > 0)
        await asyncio.sleep(0.03)
        assert network.offsets == [0]
        disk.is_open.set()
        await until(lambda: len(network.offsets) >= 2)
        assert network.offsets == [0, 1]

    run(scenario())


# ---- An observer -----------------------------------------------------------------------------------------------------


class LateNames(InProcessNetwork):
    """The network of a node that is the first to be there: the others get their names later."""

    def know(self, *node_ids: int) -> None:
        self._node_ids = node_ids


@pytest.mark.parametrize("known", [(), (3002,)], ids=["no node", "only one that is gone"])
def test_an_observer_that_begins_before_the_others_finds_them_when_they_come(
    known: tuple[int, ...],
) -> None:  # A36
    async def scenario() -> None:
        counters = Counters()
        network = LateNames(counters.switch, Caller(UUID(int=4)), 3004, (3004, *known))
        observer = CounterNode(MemoryDisk(), network, 3004)
        await format_controller(
            observer.settings, cluster_id="counters", directory_id=UUID(int=3004), voters=None
        )
        await observer.start()
        await asyncio.sleep(5)
        await counters.start(3001, 3003)
        await counters.add(5)
        network.know(3001, 3003, 3004)
        await until(lambda: observer.shard.shard.total == 5)
        assert observer.driver.quorum.election.leader_id in (3001, 3003)
        observer.kill()

    run(scenario())


# ---- A directory that is not what it should be -----------------------------------------------------------------------


def test_a_voter_without_its_quorum_state_does_not_vote_on_a_guess() -> None:  # A8, A9
    async def scenario() -> None:
        counters = Counters()
        await counters.start()
        await counters.add(5)
        await counters.until_all_have(5)
        for node_id in list(counters.nodes):
            path = counters.nodes[node_id].driver.directory.election_path
            counters.kill(node_id)
            counters.disks[node_id].unlink(path)
            with pytest.raises(StorageError, match=f"{path} is missing"):
                await counters.start(node_id)

    run(scenario())


@pytest.mark.parametrize("position", [3, 14], ids=["base offset", "epoch"])
def test_a_flipped_bit_that_no_crc_covers_makes_no_log_the_newest(position: int) -> None:  # A8, A16
    async def scenario() -> None:
        counters = Counters()
        await counters.start()
        await counters.add(5)
        await counters.until_all_have(5)
        for node_id in list(counters.nodes):
            path = f"{counters.nodes[node_id].driver.directory.path}/{0:020d}.log"
            counters.kill(node_id)
            disk = counters.disks[node_id]
            batches = list(split_batches(disk.read_at(path, 0, disk.size(path))))
            last_batch_at = disk.size(path) - batches[-1].size_bytes
            disk.flip_bit(path, last_batch_at + position, 0)
            with pytest.raises(StorageError, match="damage"):
                await counters.start(node_id)

    run(scenario())


def test_a_node_of_another_cluster_is_refused_by_name() -> None:  # A17, A27
    async def scenario() -> None:
        counters = Counters()
        await counters.start(3001, 3002)
        await counters.add(5)
        stranger = CounterNode(MemoryDisk(), counters.switch.network(3003), 3003)
        await format_voter(stranger.settings, cluster_id="cluster-b")
        await stranger.start()
        refusal = r"controller-3001 refuses: INCONSISTENT_CLUSTER_ID: .*different clusters|cluster cluster-b fetches"
        await until(lambda: re.search(refusal, stranger.log.commit_problem()) is not None)
        fetch = FetchRequest(0, 1, 1 << 20, (FetchPartition(METADATA_TOPIC_ID, 0, 0, 1 << 20),), replica_id=3003,
                             cluster_id="cluster-b")  # fmt: skip
        with pytest.raises(InconsistentClusterId, match="cluster-b fetches from cluster counters"):
            await (await counters.active()).handle(fetch)
        assert await counters.add(1) == 6

    run(scenario())


REFUSED = BeginQuorumEpochResponse(3001, 1, ErrorCode.INVALID_VOTER_KEY)


def test_a_leader_says_no_more_that_a_voter_refuses_which_fetches_again() -> None:
    async def scenario() -> None:
        counters = Counters()
        await counters.start()
        leader = await counters.active()
        follower_id = next(each for each in counters.nodes if each != leader.settings.node_id)
        counters.kill(follower_id)
        await until(lambda: f"do not answer: controller-{follower_id}" in leader.log.commit_problem())
        leader.driver.peers.on_answered(follower_id, REFUSED)
        assert f"controller-{follower_id} refuses: INVALID_VOTER_KEY" in leader.log.commit_problem()
        await counters.start(follower_id)
        await until(lambda: leader.log.commit_problem() == "")

    run(scenario())


def test_a_refusal_counts_until_the_next_call_fails_and_only_of_a_voter() -> None:
    async def scenario() -> None:
        node = await alone(MemoryDisk())
        peers = node.driver.peers
        peers.on_answered(3009, REFUSED)  # removed from the voters since
        peers.on_answered(3002, REFUSED)
        assert re.findall(r"controller-\d+ refuses", node.log.commit_problem()) == ["controller-3002 refuses"]
        peers.on_failed(3002, NetworkException("no process"))
        assert "refuses" not in node.log.commit_problem()
        assert "do not answer: controller-3002" in node.log.commit_problem()
        node.kill()

    run(scenario())


def test_a_wiped_voter_is_not_asked_as_its_former_self() -> None:  # A6, A55
    async def scenario() -> None:
        node = await alone(MemoryDisk())
        request = vote_request(5)
        former = ReplicaKey(3001, VOTERS.voters[2].directory_id)
        response = await node.handle(
            VoteRequest("counters", request.replica, 5, former, 0, 0, is_pre_vote=False)
        )
        assert not response.is_granted
        assert response.error_code.name == "INVALID_VOTER_KEY"

    run(scenario())


# ---- The shard -------------------------------------------------------------------------------------------------------


def test_a_shard_is_active_when_its_leaders_first_record_is_committed() -> None:  # A41, A67
    async def scenario() -> None:
        disks = {each: HeldDisk() for each in (3001, 3002, 3003)}
        counters = Counters(dict(disks))
        await counters.start()
        assert await counters.add(5) == 5
        leader = (await counters.active()).settings.node_id
        followers = [each for each in counters.nodes if each != leader]
        for each in followers:
            disks[each].is_open.clear()
        counters.kill(leader)
        await counters.start(leader)
        await asyncio.sleep(0.2)
        assert not any(node.shard.is_active for node in counters.nodes.values())
        for each in followers:
            disks[each].is_open.set()
        assert await counters.add(1) == 6

    run(scenario())


def test_standbys_replay_what_is_committed_and_nothing_else() -> None:  # A41, A66
    async def scenario() -> None:
        counters = Counters()
        await counters.start()
        active = await counters.active()
        standbys = [each for each in counters.nodes if each != active.settings.node_id]
        assert await counters.add(5) == 5
        await counters.until_all_have(5)
        for each in standbys:
            counters.switch.part(each, active.settings.node_id)
        lost = asyncio.create_task(active.shard.submit(100))
        await asyncio.sleep(0.01)
        assert active.shard.shard.total == 105
        assert [counters.nodes[each].shard.shard.total for each in standbys] == [5, 5]
        with pytest.raises(NotController, match="leads no more"):
            await lost
        counters.switch.heal()
        assert await counters.add(1) == 6
        await counters.until_all_have(6)
        offsets = [node.shard.shard.offsets for node in counters.nodes.values()]
        assert offsets[0] == offsets[1] == offsets[2]

    run(scenario())


def test_a_new_leader_begins_with_the_snapshot_and_what_follows_it() -> None:  # A66
    async def scenario() -> None:
        counters = Counters()
        await counters.start()
        for number in (5, 6, 7):
            await counters.add(number)
        await counters.until_all_have(18)
        for node_id in list(counters.nodes):
            node = counters.nodes[node_id]
            last = node.shard.shard.offsets[-2] + 1
            snapshot_id = OffsetAndEpoch(last, node.driver.quorum.log.epoch_of(last - 1))
            data = [
                encode_batch([b"900"], timestamps_ms=1)
            ]  # not the sum, so that it is seen where it came from
            parts = encode_snapshot(snapshot_id, VOTERS, data, timestamp_ms=1)
            await node.driver.directory.snapshots.write(snapshot_id, parts)
            counters.kill(node_id)
        await counters.start()
        assert await counters.add(1) == 908
        await counters.until_all_have(908)
        resigned = await counters.active()
        resigned.driver.quorum.resign(int(asyncio.get_running_loop().time() * 1000))
        resigned.driver.wake()
        await until(lambda: not resigned.shard.is_active)
        await counters.until_all_have(908)

    run(scenario())


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_record_that_cannot_be_replayed_ends_the_node(is_leader: bool) -> None:  # A66
    async def scenario() -> None:
        counters = Counters()
        await counters.start()
        active = await counters.active()
        standby = next(node for node in counters.nodes.values() if node is not active)
        if is_leader:
            with pytest.raises(ZeroDivisionError):  # which the inbox makes a crash
                await active.shard.submit(13)
        else:
            active.log.append([13])
            crashes = standby.settings.crash
            assert isinstance(crashes, Crashes)
            await crashes.happened.wait()
            assert [type(error) for error in crashes.errors] == [ZeroDivisionError]

    run(scenario())


@pytest.mark.parametrize("is_in_snapshot", [True, False])
def test_a_record_that_cannot_be_replayed_ends_the_node_at_every_start(is_in_snapshot: bool) -> None:  # A66
    async def scenario() -> None:
        counters = Counters()
        await counters.start()
        active = await counters.active()
        await counters.add(5)
        await counters.until_all_have(5)
        standby_id = next(each for each, node in counters.nodes.items() if node is not active)
        if is_in_snapshot:
            driver, log = counters.nodes[standby_id].driver, counters.nodes[standby_id].log
            snapshot_id = OffsetAndEpoch(
                log.high_watermark, driver.quorum.log.epoch_of(log.high_watermark - 1)
            )
            parts = encode_snapshot(
                snapshot_id, VOTERS, [encode_batch([b"13"], timestamps_ms=1)], timestamp_ms=1
            )
            await driver.directory.snapshots.write(snapshot_id, parts)
        else:
            active.log.append([13])
            await until(
                lambda: (
                    counters.nodes[standby_id].log.high_watermark
                    == active.driver.directory.log.log_end_offset
                )
            )
        for _ in range(2):
            counters.kill(standby_id)
            await counters.start(standby_id)
            crashes = counters.nodes[standby_id].settings.crash
            assert isinstance(crashes, Crashes)
            await crashes.happened.wait()
            assert [type(error) for error in crashes.errors] == [ZeroDivisionError]

    run(scenario())


# ---- The end ---------------------------------------------------------------------------------------------------------


def test_a_leader_that_ends_waits_for_its_successor_and_no_longer() -> None:  # A23
    async def scenario() -> None:
        counters = Counters()
        await counters.start()
        ending = await counters.active()
        await ending.driver.shut_down()
        successor = await counters.active()
        assert successor is not ending
        assert ending.driver.quorum.election.leader_id == successor.settings.node_id

    run(scenario())


def test_one_lost_call_to_each_voter_does_not_spoil_the_hand_over() -> None:  # A14, A23
    async def scenario() -> None:
        counters = Counters()
        await counters.start()
        ending = await counters.active()
        epoch = ending.driver.quorum.election.leader_epoch
        await counters.add(908)
        counters.switch.fail_calls(
            "end_quorum_epoch", times=2
        )  # as Ray's first call to a process that was restarted
        await ending.driver.shut_down()
        counters.kill(ending.settings.node_id)
        successor = await counters.active()
        assert successor.log.leading_epoch == epoch + 1

    run(scenario())


def test_a_leader_that_no_voter_can_succeed_ends_at_once() -> None:  # A23
    async def scenario() -> None:
        counters = Counters()
        await counters.start()
        ending = await counters.active()
        for each in [each for each in counters.nodes if each != ending.settings.node_id]:
            counters.kill(each)
        began_s = asyncio.get_running_loop().time()
        await ending.driver.shut_down()
        assert (
            asyncio.get_running_loop().time() - began_s
            < 2 * CONFIG.controller_quorum_election_timeout_ms / 1000
        )
        assert ending.log.leading_epoch is None

    run(scenario())


def test_a_voter_that_is_told_of_the_end_of_an_epoch_answers_with_what_it_knows() -> None:  # A22
    async def scenario() -> None:
        node = await alone(MemoryDisk())
        response = await node.handle(EndQuorumEpochRequest("counters", 3002, 7, VOTERS.voters))
        assert (response.leader_id, response.leader_epoch) == (3002, 7)

    run(scenario())
