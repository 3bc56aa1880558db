"""Bugs on purpose in compaction, in the form of `planted_bugs`."""

from math import inf
from typing import Any

import numpy as np

from rayka.cleaner import compaction, offset_map
from rayka.cleaner.compaction import Compaction, SyncNeeded
from rayka.cleaner.kept_records import Horizon, KeptRecords
from rayka.sim.run_options import TopicPlan
from rayka.sim.world.faults import FaultKind
from tests.sim.planted_group_bugs import GROUP
from tests.sim.planting import SHORT, PlantedBug, planted

COMPACTING: dict[str, Any] = {
    "voters": 1,
    "brokers": 3,
    "voter_changes": False,
    "compacts": True,
    "topics": (TopicPlan("data0"),),
    "producers": 2,
    "records_per_second": 40.0,
    "latency_ms": 5.0,
    "jitter_ms": 5.0,
    "loss": 0.0,
    "fault_kinds": (FaultKind.KILL, FaultKind.POWER_LOSS),
    "faults_per_minute": 30.0,
}


def drops_tombstones_at_once(original: Any) -> Any:
    def init(self: KeptRecords, hasher: Any, offsets: Any, horizon: Horizon, *others: Any) -> None:
        original(
            self, hasher, offsets, horizon._replace(delete_retention_ms=-1, timestamp_ms=1 << 60), *others
        )

    return init


def cleans_what_is_too_young(original: Any) -> Any:
    return lambda segments, bound, _: original(segments, bound, inf)


def cleans_what_is_not_committed(original: Any) -> Any:
    return lambda segments, bound, newest_ms: original(segments, 1 << 62, newest_ms)


def says_that_all_was_put(original: Any) -> Any:
    def put(self: Any, hashes: np.ndarray, offsets: np.ndarray) -> int:
        original(self, hashes, offsets)
        return len(offsets)

    return put


def takes_every_key_for_the_one_in_its_slot(_: Any) -> Any:
    def same(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        is_taken: np.ndarray = found[:, 1] != 0
        return is_taken

    return same


def finds_nothing_newest(original: Any) -> Any:
    def newest_in(self: Any, begin_offset: int, end_offset: int) -> np.ndarray:
        found: np.ndarray = original(self, begin_offset, end_offset)
        return found[:0]

    return newest_in


def has_every_key(_: Any) -> Any:
    def has(self: Any, hashes: np.ndarray) -> np.ndarray:
        return np.ones(len(hashes), bool)

    return has


def swaps_without_a_sync(original: Any) -> Any:
    def on_step(self: Compaction, step: Any) -> Any:
        turns = original(self, step)
        while True:
            try:
                turn = next(turns)
            except StopIteration as end:
                return end.value
            if not isinstance(turn, SyncNeeded):
                yield turn

    return on_step


COMPACTION_BUGS = [
    PlantedBug(
        "a tombstone is dropped before its time",
        "compaction",
        planted(KeptRecords, "__init__", drops_tombstones_at_once),
        3,
        COMPACTING,
        seconds=SHORT,
    ),
    PlantedBug(
        "cleaned past the lag bound",
        "compaction",
        planted(compaction.__dict__, "_before", cleans_what_is_too_young),
        2,
        COMPACTING,
    ),
    PlantedBug(
        "cleaned past the high watermark and what is durable",
        "compaction",
        planted(compaction.__dict__, "_before", cleans_what_is_not_committed),
        6,
        COMPACTING,
    ),
    PlantedBug(
        "a map that overflows in silence",
        "compaction",
        planted(offset_map.OffsetMap, "put", says_that_all_was_put),
        2,
        COMPACTING,
    ),
    PlantedBug(
        "all keys of a slot count as the same",
        "compaction",
        planted(offset_map.__dict__, "_same", takes_every_key_for_the_one_in_its_slot),
        1,
        COMPACTING,
    ),
    PlantedBug(
        "a record counts as older than itself",
        "compaction",
        planted(offset_map.OffsetMap, "newest_in", finds_nothing_newest),
        1,
        COMPACTING,
    ),
    PlantedBug(
        "every record that is clean already counts as superseded",
        "compaction",
        planted(offset_map.OffsetMap, "has", has_every_key),
        1,
        COMPACTING,
    ),
    PlantedBug(
        "of what a group commits the newest counts as superseded",
        "compaction",
        planted(offset_map.OffsetMap, "newest_in", finds_nothing_newest),
        1,
        GROUP | {"compacts_offsets": True},
    ),
    PlantedBug(
        "a swap without a sync",
        "compaction",
        planted(Compaction, "on_step", swaps_without_a_sync),
        3,
        COMPACTING
        | {
            "topics": (TopicPlan("data0", configs={"flush": "batch"}),),
            "fault_kinds": (FaultKind.POWER_LOSS,),
            "faults_per_minute": 60.0,
        },
        seconds=SHORT,
    ),
]
