"""Bugs on purpose: each a small change of the real code, the checker that must notice it, and the first seed of all
that shows it.

They are the test of the test: a checker that catches nothing proves nothing. To look for a seed anew:
`python -m tests.sim.planted_bugs NAME [LAST_SEED]`.
"""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from rayka.controller.controller import Controller
from rayka.errors import ErrorCode
from rayka.ids import OffsetAndEpoch
from rayka.log.log import PrefixCopy
from rayka.metadata import delta
from rayka.metadata.metadata_records import BrokerRegistrationChangeRecord
from rayka.node import quorum_directory, quorum_driver
from rayka.node.metadata_follower import MetadataFollower
from rayka.node.quorum_log import QuorumLog
from rayka.node.quorum_requests import QuorumRequests
from rayka.raft import elections
from rayka.raft.election_state import LogPosition, VoteTally
from rayka.raft.leader import FAR_MS, Leader
from rayka.raft.leader_log import LeaderLog
from rayka.raft.log_fetcher import LogFetcher
from rayka.raft.quorum_state import QuorumState
from rayka.raft.raft_log import RaftLog
from rayka.raft.roles import Candidate
from rayka.raft.voter_changes import VoterChanges
from rayka.shard.runtime import ShardRuntime
from rayka.sim.world.faults import FaultKind
from tests.sim.planted_compaction_bugs import COMPACTION_BUGS
from tests.sim.planted_elastic_bugs import ELASTIC_BUGS
from tests.sim.planted_group_bugs import GROUP_BUGS
from tests.sim.planted_lane_bugs import LANE_BUGS
from tests.sim.planted_replication_bugs import REPLICATION_BUGS
from tests.sim.planted_retention_bugs import RETENTION_BUGS
from tests.sim.planted_shard_bugs import SHARD_BUGS
from tests.sim.planting import SEARCHED_MAX, SHORT, PlantedBug, always, planted, search

# ---- Votes ---------------------------------------------------------------------------------------------------------


def forget_vote(state: Any) -> Any:
    return msgspec.structs.replace(state, voted_key=None)


def reads_no_vote(original: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    return lambda content: (state := original(content)) and forget_vote(state)


def writes_no_vote(original: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    return lambda election: original(forget_vote(election))


def answers_before_it_is_durable(_: Any) -> Any:
    async def when_durable(self: QuorumRequests, response: Any) -> Any:
        return response

    return when_durable


def sees_every_log_as_full(original: Callable[..., bool]) -> Callable[..., bool]:
    def can_grant_vote(elector: Any, candidate: Any, position: Any, *, is_pre_vote: bool) -> bool:
        return original(
            elector._replace(position=LogPosition(0, 0)), candidate, position, is_pre_vote=is_pre_vote
        )

    return can_grant_vote


def leads_its_epoch_again(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: QuorumState, *, now_ms: int, **parts: Any) -> None:
        original(self, now_ms=now_ms, **parts)
        if self.election.leader_id == self.local.node_id and self.voters is not None:
            tally = VoteTally(self.voters, self.local)
            for voter in self.voters.voters:
                tally.record(voter, is_granted=True)
            self.role = Candidate(now_ms, tally)
            self.maybe_become_leader(now_ms)

    return init


# ---- Replication ---------------------------------------------------------------------------------------------------


def commits_old_epochs(_: Any) -> Any:
    def maybe_update_high_watermark(self: Leader) -> bool:
        descending = sorted((self._end_offset(voter) for voter in self.voters.voters), reverse=True)
        held_by_majority = descending[len(descending) // 2]
        if held_by_majority <= self.high_watermark or held_by_majority <= 0:
            return False
        self.high_watermark = held_by_majority
        return True

    return maybe_update_high_watermark


def commits_with_one(_: Any) -> Any:
    def maybe_update_high_watermark(self: Leader) -> bool:
        furthest = max(self._end_offset(voter) for voter in self.voters.voters)
        if furthest <= max(self.epoch_start_offset, self.high_watermark):
            return False
        self.high_watermark = furthest
        return True

    return maybe_update_high_watermark


def appends_with_the_epoch_before(original: Callable[..., None]) -> Callable[..., None]:
    def append_as_leader(self: RaftLog, batches: Any, epoch: int, now_ms: int) -> None:
        original(self, batches, max(1, epoch - 1), now_ms)

    return append_as_leader


def truncates_committed_records(_: Any) -> Any:
    def truncate_to(
        self: RaftLog, end: OffsetAndEpoch, copied: PrefixCopy | None = None, *, committed_offset: int
    ) -> PrefixCopy | None:
        needed = self._log.truncate_to(max(self.log_start_offset, committed_offset - 1), copied)
        self.history.truncate_to(self._log.log_end_offset)
        return needed

    return truncate_to


def accepts_any_epoch(original: Callable[..., ErrorCode]) -> Callable[..., ErrorCode]:
    def epoch_error(self: LeaderLog, current_leader_epoch: int) -> ErrorCode:
        is_leader = isinstance(self._state.role, Leader)
        return ErrorCode.NONE if is_leader else original(self, current_leader_epoch)

    return epoch_error


def takes_every_high_watermark(_: Any) -> Any:
    def on_leader_high_watermark(self: LogFetcher, offset: int) -> None:
        self._state.known_high_watermark = min(offset, self._state.log.log_end_offset)

    return on_leader_high_watermark


def ignores_the_change_under_way(original: Callable[..., Any]) -> Callable[..., Any]:
    def refusal(self: VoterChanges, *args: Any) -> Any:
        found = original(self, *args)
        return None if found is not None and "not committed yet" in found[1] else found

    return refusal


# ---- Snapshots -----------------------------------------------------------------------------------------------------


def serves_another_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    def handle_fetch_snapshot(self: LeaderLog, request: Any, now_ms: int) -> Any:
        response = original(self, request, now_ms)
        asked = response.snapshot_id
        return msgspec.structs.replace(response, snapshot_id=OffsetAndEpoch(asked.offset, asked.epoch + 1))

    return handle_fetch_snapshot


def leaves_out_the_last_record(original: Callable[..., Any]) -> Callable[..., Any]:
    def snapshot(self: Controller, next_offset: int) -> Any:
        return list(original(self, next_offset))[:-1]

    return snapshot


# ---- State machines ------------------------------------------------------------------------------------------------


def replays_by_chance(original: Callable[..., None]) -> Callable[..., None]:
    counter = itertools.count()

    def change_broker(self: delta.MetadataDelta, record: BrokerRegistrationChangeRecord) -> None:
        if next(counter) % 5 == 4 and record.is_fenced is not None:
            record = msgspec.structs.replace(record, is_fenced=not record.is_fenced)
        original(self, record)

    return change_broker


def reads_what_is_not_committed(_: Any) -> Any:
    def committed(self: QuorumLog[Any], offset: int) -> Any:
        end = self._quorum.log.log_end_offset
        if self._quorum.high_watermark < 0 or end <= offset:
            return [], offset
        read = self._quorum.log.read(offset, max_bytes=1 << 20, end_offset=end)
        return list(self._decoded(read.records, offset)), read.next_offset

    return committed


def answers_before_it_is_committed(original: Callable[..., Any]) -> Callable[..., Any]:
    def handle(self: ShardRuntime[Any, Any], request: Any, **times: int) -> Any:
        pending = original(self, request, **times)
        pending.is_done = True
        return pending

    return handle


def loses_a_record(original: Callable[..., Any]) -> Callable[..., Any]:
    counter = itertools.count()

    def take(self: MetadataFollower, *args: Any) -> Any:
        taken = original(self, *args)
        if self._pending and next(counter) % 7 == 6:
            self._pending.pop()
        return taken

    return take


RESTARTS = {
    "fault_kinds": (FaultKind.KILL, FaultKind.POWER_LOSS, FaultKind.ISOLATE),
    "faults_per_minute": 60.0,
}
PARTITIONS = {
    "fault_kinds": (FaultKind.ISOLATE, FaultKind.CUT_ONE_WAY, FaultKind.SPLIT),
    "faults_per_minute": 40.0,
}
ELECTIONS = {
    "fault_kinds": (FaultKind.KILL, FaultKind.POWER_LOSS_ALL),
    "faults_per_minute": 200.0,
    "voters": 5,
    "jitter_ms": 50.0,
}
BUSY = {"voters": 3, "ops_per_second": 20.0}

PLANTED_BUGS = [
    PlantedBug(
        "votes twice after a restart",
        "vote-once",
        planted(quorum_directory, "decode_election", reads_no_vote),
        1,
        ELECTIONS,
        seconds=SHORT,
    ),
    PlantedBug(
        "forgets its vote on disk",
        "vote-durable",
        planted(quorum_driver, "encode_election", writes_no_vote),
        1,
    ),
    PlantedBug(
        "answers before its vote is durable",
        "vote-durable",
        planted(QuorumRequests, "_when_durable", answers_before_it_is_durable),
        1,
    ),
    PlantedBug(
        "votes for a shorter log",
        "votes-for-full-log",
        planted(elections, "can_grant_vote", sees_every_log_as_full),
        5,
        PARTITIONS | BUSY,
    ),
    PlantedBug(
        "a resigned leader leads its epoch again",
        "single-leader",
        planted(QuorumState, "__init__", leads_its_epoch_again),
        1,
        RESTARTS | BUSY,
    ),
    PlantedBug(
        "ignores check quorum",
        "check-quorum",
        planted(Leader, "check_quorum_deadline_ms", always(FAR_MS)),
        5,
        PARTITIONS | BUSY,
    ),
    PlantedBug(
        "ignores check quorum on combined nodes",
        "check-quorum",
        planted(Leader, "check_quorum_deadline_ms", always(FAR_MS)),
        1,
        PARTITIONS | BUSY | {"combined": True},
    ),
    PlantedBug(
        "acknowledges before the fsync",
        "fetch-durable",
        planted(RaftLog, "is_flushed", always(True)),
        1,
        BUSY,
    ),
    PlantedBug(
        "high watermark over entries of old epochs",
        "commits-own-epoch",
        planted(Leader, "maybe_update_high_watermark", commits_old_epochs),
        1,
        PARTITIONS | BUSY,
    ),
    PlantedBug(
        "commits with a minority",
        "majority",
        planted(Leader, "maybe_update_high_watermark", commits_with_one),
        1,
        BUSY,
    ),
    PlantedBug(
        "appends with an old epoch",
        "commits-own-epoch",
        planted(RaftLog, "append_as_leader", appends_with_the_epoch_before),
        1,
        PARTITIONS | BUSY,
    ),
    PlantedBug(
        "truncates below the high watermark",
        "truncation",
        planted(RaftLog, "truncate_to", truncates_committed_records),
        14,
        PARTITIONS | BUSY,
    ),
    PlantedBug(
        "accepts a fetch of another epoch",
        "fetch-epoch",
        planted(LeaderLog, "epoch_error", accepts_any_epoch),
        10,
        PARTITIONS | BUSY,
    ),
    PlantedBug(
        "lets a follower's high watermark fall",
        "high-watermark",
        planted(LogFetcher, "_on_leader_high_watermark", takes_every_high_watermark),
        1,
        PARTITIONS | BUSY,
    ),
    PlantedBug(
        "two voter changes at once",
        "one-voter-change",
        planted(VoterChanges, "_refusal", ignores_the_change_under_way),
        2,
        {"voter_changes": True, "voters": 5, "latency_ms": 20.0},
    ),
    PlantedBug(
        "serves a snapshot of another epoch",
        "snapshot-id",
        planted(LeaderLog, "handle_fetch_snapshot", serves_another_epoch),
        1,
        RESTARTS,
    ),
    PlantedBug(
        "leaves a record out of a snapshot",
        "snapshot-content",
        planted(Controller, "snapshot", leaves_out_the_last_record),
        1,
    ),
    PlantedBug(
        "replay is not deterministic",
        "images",
        planted(delta._REPLAY, BrokerRegistrationChangeRecord, replays_by_chance),
        1,
    ),
    PlantedBug(
        "a standby replays what is not committed",
        "standby",
        planted(QuorumLog, "committed", reads_what_is_not_committed),
        1,
        BUSY,
    ),
    PlantedBug(
        "answers before the commit",
        "acknowledged",
        planted(ShardRuntime, "handle", answers_before_it_is_committed),
        6,
        BUSY,
    ),
    PlantedBug(
        "a broker loses a record",
        "images",
        planted(MetadataFollower, "_take", loses_a_record),
        1,
        BUSY,
        seconds=SHORT,
    ),
]


def main(wanted: str = "", last_seed: str = str(SEARCHED_MAX)) -> None:
    parts = (
        PLANTED_BUGS,
        REPLICATION_BUGS,
        SHARD_BUGS,
        LANE_BUGS,
        GROUP_BUGS,
        COMPACTION_BUGS,
        RETENTION_BUGS,
        ELASTIC_BUGS,
    )
    for bug in itertools.chain.from_iterable(parts):
        if wanted in bug.name:
            print(bug.name, bug.checker, *search(bug, int(last_seed)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
