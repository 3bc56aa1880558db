"""How many workers a pool wants."""

import pytest

from rayka.worker_pool.scaling import Look, WorkerScaling


def looks(
    scaling: WorkerScaling, begin_s: int, end_s: int, *, partitions: int = 32, workers: int, **seen: float
) -> int:
    """What is wanted after a look in each second, until a step is taken."""
    for at_s in range(begin_s, end_s):
        look = Look(
            at_s=at_s,
            workers=workers,
            lag_records=int(seen.get("lag_records", 0)),
            records_per_s=seen.get("records_per_s", 100.0),
            busy=seen.get("busy", float(workers)),
            waits=bool(seen.get("waits", False)),
        )
        wanted = scaling.wanted(look, partitions)
        if wanted != workers:
            return wanted
    return workers


@pytest.mark.parametrize(
    ("lag_records", "records_per_s", "lag_s"),
    [(0, 0.0, 0.0), (0, 10.0, 0.0), (50, 10.0, 5.0), (1, 0.0, float("inf"))],
)
def test_lag_in_seconds_is_how_long_what_waits_takes(
    lag_records: int, records_per_s: float, lag_s: float
) -> None:
    assert Look(0, 1, lag_records, records_per_s, 0).lag_s == lag_s


def test_without_a_target_the_least_number_stays_whatever_waits() -> None:
    scaling = WorkerScaling(2, 8, None)
    assert looks(scaling, 0, 100, workers=2, lag_records=1_000_000) == 2
    assert looks(scaling, 100, 200, workers=1) == 2


def test_one_worker_is_added_once_too_much_has_waited_for_some_seconds() -> None:
    scaling = WorkerScaling(1, 8, 5.0)
    assert looks(scaling, 0, 3, workers=1, lag_records=501) == 1
    assert looks(scaling, 3, 4, workers=1, lag_records=501) == 2
    assert looks(scaling, 4, 7, workers=2, lag_records=501) == 2


def test_a_lag_of_exactly_the_target_is_no_reason() -> None:
    assert looks(WorkerScaling(1, 8, 5.0), 0, 100, workers=1, lag_records=500) == 1


def test_a_moment_without_much_waiting_begins_the_time_anew() -> None:
    scaling = WorkerScaling(1, 8, 5.0)
    assert looks(scaling, 0, 3, workers=1, lag_records=600) == 1
    assert looks(scaling, 3, 4, workers=1) == 1
    assert looks(scaling, 4, 7, workers=1, lag_records=600) == 1


def test_nothing_changes_while_the_last_step_is_under_way() -> None:
    scaling = WorkerScaling(1, 8, 5.0)
    assert looks(scaling, 0, 100, workers=2, lag_records=10_000, waits=True) == 2
    assert looks(scaling, 100, 103, workers=2, lag_records=10_000) == 2


@pytest.mark.parametrize(("most", "partitions"), [(3, 32), (8, 3)])
def test_there_are_never_more_than_the_maximum_or_than_partitions(most: int, partitions: int) -> None:
    scaling = WorkerScaling(1, most, 5.0)
    assert looks(scaling, 0, 100, workers=3, partitions=partitions, lag_records=10_000) == 3
    assert looks(scaling, 100, 200, workers=5, partitions=partitions) == 3


def test_the_least_number_is_there_also_of_few_partitions() -> None:
    assert looks(WorkerScaling(4, 8, 5.0), 0, 1, workers=1, partitions=1) == 4


def test_one_worker_is_taken_away_when_the_others_have_long_had_time_to_spare() -> None:
    scaling = WorkerScaling(1, 8, 5.0)
    assert looks(scaling, 0, 30, workers=3, busy=1.3) == 3
    assert looks(scaling, 30, 31, workers=3, busy=1.3) == 2


def test_no_worker_is_taken_away_that_the_others_could_hardly_do_without() -> None:
    assert looks(WorkerScaling(1, 8, 5.0), 0, 1_000, workers=3, busy=1.5) == 3


def test_the_last_workers_stay() -> None:
    assert looks(WorkerScaling(2, 8, 5.0), 0, 1_000, workers=2, busy=0.0) == 2
