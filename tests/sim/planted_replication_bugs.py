"""Bugs on purpose in the replication of partitions, in the form of `planted_bugs`: the published wrong turns of Kafka's
protocol (KIP-101, KIP-279, KIP-320, KIP-966), and what every implementation of it can get wrong.

To look for a seed anew: `python -m tests.sim.planted_bugs NAME [LAST_SEED]`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import msgspec

from rayka.controller.leader_elections import Elections
from rayka.controller.partition_change import PartitionChangeBuilder
from rayka.ids import OffsetAndEpoch
from rayka.log import log_directory, producer_state
from rayka.log.log import Log
from rayka.log.meta_properties import META_PROPERTIES_FILE, decode_meta_properties
from rayka.log.producer_state import ProducerSnapshots, ProducerStates
from rayka.partition import partition, partition_follower
from rayka.partition.follower_states import FollowerState
from rayka.partition.partition import Partition
from rayka.partition.partition_leader import PartitionLeader
from rayka.partition.replica_log import ReplicaLog
from rayka.sim.run_options import TopicPlan
from rayka.sim.world.faults import FaultKind
from tests.sim.planting import PlantedBug, always, planted

SECONDS = 12.0


def all_of(*plants: Callable[[], AbstractContextManager[None]]) -> Callable[[], AbstractContextManager[None]]:
    """Several changes that make one bug."""

    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            for each in plants:
                stack.enter_context(each())
            yield

    return plant


# ---- Truncation ------------------------------------------------------------------------------------------------------


def truncates_to_its_high_watermark(original: Callable[..., None]) -> Callable[..., None]:
    def update_state(self: Partition, state: Any, *, now_ms: int) -> None:
        epoch = self.leader_epoch
        original(self, state, now_ms=now_ms)
        if self.leader_epoch > epoch and not self.is_leader:
            copy = self.log.truncate_to(self.high_watermark)
            if copy is not None:
                self.log._disk.copy_prefix_now(copy.source, copy.target, copy.size_bytes)
                self.log.truncate_to(self.high_watermark, copy)

    return update_state


def believes_the_leader_alone(_: Any) -> Any:
    def truncation_offset(log: Log, diverging: OffsetAndEpoch) -> int:
        return min(diverging.offset, log.log_end_offset)

    return truncation_offset


def compares_offsets_alone(original: Callable[..., Any]) -> Any:
    def diverging_epoch(log: Log, fetch: Any) -> OffsetAndEpoch | None:
        end = original(log, fetch)
        return end if end is not None and end.offset < fetch.fetch_offset else None

    return diverging_epoch


def never_truncates(_: Any) -> Any:
    def truncation_offset(log: Log, diverging: OffsetAndEpoch) -> int:
        return log.log_end_offset

    return truncation_offset


# ---- The high watermark and the ISR ----------------------------------------------------------------------------------


def counts(members: Callable[[PartitionLeader], tuple[int, ...]]) -> Callable[[Any], Any]:
    """The high watermark over other members than the maximal ISR."""

    def make(_: Any) -> Any:
        def committed(self: PartitionLeader, own_offset: int, log_end_offset: int, now_ms: int) -> int:
            ends = [
                each.log_end_offset
                for each in self.followers.by_id.values()
                if each.replica_id in members(self)
            ]
            return min(own_offset, *ends) if ends else own_offset

        return committed

    return make


def proposed(self: PartitionLeader) -> tuple[int, ...]:
    item = self.isr.proposal
    return self.isr.committed if item is None else tuple(each.broker_id for each in item.isr)


def forgets_where_its_epoch_began(original: Callable[..., Any]) -> Callable[..., Any]:
    def maybe_expand(self: PartitionLeader, follower: FollowerState, needed_offset: int) -> Any:
        return original(self, follower, 0)

    return maybe_expand


def counts_fetches_of_older_epochs(original: Callable[..., None]) -> Callable[..., None]:
    def check_epoch(self: Partition, leader_epoch: int) -> None:
        original(self, max(leader_epoch, self.leader_epoch) if self.is_leader else leader_epoch)

    return check_epoch


def counts_what_is_on_its_way(original: Callable[..., None]) -> Callable[..., None]:
    def on_fetch(self: FollowerState, fetch: Any, leader_end_offset: int, now_ms: int) -> None:
        original(self, fetch, leader_end_offset, now_ms)
        self.log_end_offset = leader_end_offset

    return on_fetch


def reads_to_the_log_end(_: Any) -> Any:
    return lambda self, is_follower: self.log.log_end_offset


def appends_in_the_epoch_before(original: Callable[..., Any]) -> Callable[..., Any]:
    def append_all(self: PartitionLeader, *args: Any, **options: Any) -> Any:
        state = self.state
        self.state = msgspec.structs.replace(state, leader_epoch=max(0, state.leader_epoch - 1))
        try:
            return original(self, *args, **options)
        finally:
            self.state = state

    return append_all


# ---- Acknowledgements ------------------------------------------------------------------------------------------------


def does_not_wait(_: Any) -> Any:
    return lambda self, appended, acks: True


# ---- The controller --------------------------------------------------------------------------------------------------


def keeps_replica_that_lost_its_tail(original: Callable[..., Any]) -> Callable[..., Any]:
    def after(self: Elections, broker: Any, *, is_unclean_shutdown: bool = False) -> Any:
        return original(self, broker)

    return after


def allows_unclean_elections(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, is_allowed: original(self, True)


def keeps_all_eligible(_: Any) -> Any:
    def eligible_replicas(self: PartitionChangeBuilder, target: Any) -> tuple[int, ...]:
        return tuple(each for each in target.replicas if each not in target.isr)

    return eligible_replicas


def elects_by_order_alone(_: Any) -> Any:
    def clean_leader(self: PartitionChangeBuilder, target: Any) -> int:
        order = (self._partition.leader_id, *target.replicas)
        found = next((each for each in order if self._is_electable(each)), -1)
        return found

    return clean_leader


# ---- Sequences -------------------------------------------------------------------------------------------------------


def is_off_by_one(original: Callable[..., Any]) -> Callable[..., Any]:
    def check(self: ProducerStates, batch: Any) -> Any:
        entry = dict(self.items()).get(batch.producer_id)
        if entry is not None and entry.batches[-1].last_sequence == batch.base_sequence:
            return None
        return original(self, batch)

    return check


def keeps_what_was_cut_off(original: Callable[..., None]) -> Callable[..., None]:
    def on_truncated(self: ProducerSnapshots, segments: Any) -> None:
        self._remove_above(segments.active.next_offset)

    return on_truncated


def forgets_producers_as_a_follower(original: Callable[..., None]) -> Callable[..., None]:
    def append(log: Log, batches: Any, now_ms: int) -> None:
        original(log, batches, now_ms)
        log.producers.clear()

    return append


# ---- Directories -----------------------------------------------------------------------------------------------------


def takes_any_directory(original: Callable[..., Any]) -> Callable[..., Any]:
    def read(disk: Any, path: str, node_id: int, cluster_id: str) -> Any:
        properties_path = f"{path}/{META_PROPERTIES_FILE}"
        owner = decode_meta_properties(disk.read_at(properties_path, 0, disk.size(properties_path)))
        return original(disk, path, node_id if owner is None else owner.node_id, cluster_id)

    return read


THREE = TopicPlan("data0", 2, 3, {"min.insync.replicas": "2", "segment.bytes": "10000"})
DATA: dict[str, Any] = {
    "topics": (THREE,),
    "voters": 1,
    "brokers": 3,
    "clients": 1,
    "ops_per_second": 0.5,
    "producers": 2,
    "consumers": 1,
    "records_per_second": 60.0,
    "operations_per_minute": 0.0,
    "voter_changes": False,
    "latency_ms": 1.0,
    "jitter_ms": 5.0,
    "loss": 0.0,
    "duplication": 0.0,
    "sync_ms": 1.0,
    "fault_kinds": (FaultKind.KILL, FaultKind.ISOLATE, FaultKind.CUT_LINK, FaultKind.PAUSE),
    "faults_per_minute": 90.0,
    "config": {
        "broker_session_timeout_ms": 800,
        "broker_heartbeat_interval_ms": 200,
        "replica_lag_time_max_ms": 400,
        "replica_fetch_wait_max_ms": 50,
        "replica_fetch_backoff_ms": 50,
        "replica_high_watermark_checkpoint_interval_ms": 200,
    },
}
LOSSY = {**DATA, "loss": 0.03, "duplication": 0.05, "jitter_ms": 20.0}
WILD = {**DATA, "faults_per_minute": 200.0}
FLIPPING = {
    **DATA,
    "topics": (TopicPlan("data0", 2, 2, {"min.insync.replicas": "1"}),),
    "brokers": 2,
    "producers": 3,
    "records_per_second": 100.0,
    "faults_per_minute": 400.0,
    "config": {
        **DATA["config"],
        "broker_session_timeout_ms": 300,
        "broker_heartbeat_interval_ms": 100,
        "replica_lag_time_max_ms": 2_000,
        "leader_imbalance_check_interval_seconds": 1,
        "leader_imbalance_per_broker_percentage": 0,
    },
}
MOVING = {
    **FLIPPING,
    "topics": (THREE,),
    "brokers": 3,
    "loss": 0.05,
    "duplication": 0.05,
    "jitter_ms": 20.0,
    "faults_per_minute": 150.0,
}
JOINING = {
    **DATA,
    "topics": (TopicPlan("data0", 2, 3, {"min.insync.replicas": "1"}),),
    "records_per_second": 200.0,
    "fault_kinds": (FaultKind.CUT_LINK, FaultKind.CUT_ONE_WAY, FaultKind.CLOG, FaultKind.PAUSE),
    "faults_per_minute": 40.0,
    "jitter_ms": 100.0,
    "config": {**DATA["config"], "replica_lag_time_max_ms": 100},
}
DARK = {**DATA, "fault_kinds": (FaultKind.POWER_LOSS, FaultKind.ISOLATE, FaultKind.PAUSE)}
FLUSHED = {**DATA, "sync_ms": 30.0, "topics": (TopicPlan("data0", 1, 1, {"flush": "batch"}),)}


def bug(name: str, checker: str, plant: Any, seed: int, chosen: dict[str, Any] | None = None) -> PlantedBug:
    return PlantedBug(name, checker, plant, seed, chosen or DATA, SECONDS)


REPLICATION_BUGS = [
    bug("truncates to the high watermark", "partition-truncation",
        planted(Partition, "update_state", truncates_to_its_high_watermark), 3),
    bug("looks an epoch up on one side only", "partition-prefix",
        all_of(planted(partition_follower, "truncation_offset", believes_the_leader_alone),
               planted(partition, "_diverging_epoch", compares_offsets_alone)), 29, WILD),
    bug("does not truncate", "liveness", planted(partition_follower, "truncation_offset", never_truncates), 7),
    bug("high watermark over the proposed ISR", "isr-high-watermark",
        planted(PartitionLeader, "committed_offset", counts(proposed)), 1),
    bug("high watermark over the committed ISR", "isr-member",
        planted(PartitionLeader, "committed_offset", counts(lambda self: self.isr.committed)), 3, JOINING),
    bug("high watermark of the leader alone", "isr-high-watermark",
        planted(PartitionLeader, "committed_offset", counts(lambda self: ())), 1),
    bug("a follower is counted with a stale epoch", "fetch-epoch",
        planted(Partition, "_check_epoch", counts_fetches_of_older_epochs), 7),
    bug("counts what is on its way to a follower", "isr-high-watermark",
        planted(FollowerState, "on_fetch", counts_what_is_on_its_way), 1),
    bug("a follower joins before the leader's epoch began", "isr-member",
        planted(PartitionLeader, "maybe_expand", forgets_where_its_epoch_began), 2),
    bug("appends in an old epoch", "partition-leader",
        planted(PartitionLeader, "append_all", appends_in_the_epoch_before), 1),
    bug("consumers read to the log end", "consumed", planted(Partition, "_end_offset_for", reads_to_the_log_end), 1),
    bug("acknowledges what the leader has", "acknowledged-early",
        planted(PartitionLeader, "is_acknowledged", does_not_wait), 1),
    bug("acknowledges before min ISR is checked", "isr-high-watermark",
        planted(PartitionLeader, "effective_min_isr", always(0)), 1),
    bug("flush=batch does not wait for the disk", "flushed",
        all_of(planted(ReplicaLog, "is_flushed_in_batches", always(False)),
               planted(ReplicaLog, "needs_sync", always(False))), 1, FLUSHED),
    bug("an ISR member stays after an unclean restart", "isr-member",
        planted(Elections, "after", keeps_replica_that_lost_its_tail), 3, DARK),
    bug("elects unclean though it may not", "unclean-election",
        planted(PartitionChangeBuilder, "is_unclean_election_allowed", allows_unclean_elections), 3),
    bug("every replica stays eligible", "isr-high-watermark",
        planted(PartitionChangeBuilder, "_eligible_replicas", keeps_all_eligible), 1),
    bug("elects whoever is first", "unclean-election",
        planted(PartitionChangeBuilder, "_clean_leader", elects_by_order_alone), 1),
    bug("a sequence check that is off by one", "duplicate",
        planted(ProducerStates, "check", is_off_by_one), 1, LOSSY),
    bug("a duplicate window of one batch", "duplicate",
        planted(producer_state, "CACHED_BATCHES", lambda _: 1), 18, WILD),
    bug("producers' state is kept over a truncation", "promised",
        planted(ProducerSnapshots, "on_truncated", keeps_what_was_cut_off), 4, FLIPPING),
    bug("followers do not learn of producers", "duplicate",
        planted(partition_follower, "append_batches", forgets_producers_as_a_follower), 5, MOVING),
    bug("serves from another broker's directory", "foreign-directory",
        planted(log_directory, "read_meta_properties", takes_any_directory), 1,
        {**DATA, "fault_kinds": (FaultKind.SWAP,)}),
]  # fmt: skip
