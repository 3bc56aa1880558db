"""Logs of earlier runs: which of them stay beside the data, and which go with a node."""

from pathlib import Path

from rayka.actors.node_logs import _keep, keep_logs_of_ended_ray, kept_logs, remove_kept_logs

RUNS = [f"broker-1-2026-01-0{day}T00-00-00.log" for day in range(1, 8)]


def test_the_logs_of_the_last_runs_stay_and_those_of_other_nodes_are_left_alone(tmp_path: Path) -> None:
    source, kept = tmp_path / "session", Path(kept_logs(str(tmp_path / "data" / "broker-1")))
    source.mkdir()
    kept.mkdir(parents=True)
    (source / "worker-ab-01-2.err").write_bytes(b":job_id:01\nfirst\n")
    (source / "worker-cd-01-3.err").write_bytes(b":actor_name:Broker\nsecond\n")
    others = ("broker-11-2025-01-01T00-00-00.log", "controller-3001-2025-01-01T00-00-00.log")
    for name in (*RUNS, *others):
        (kept / name).touch()
    _keep(str(source), {str(kept / "broker-1"): ["ab", "cd"], str(kept / "broker-12"): ["ef"]})
    names = sorted(each.name for each in kept.iterdir())
    assert {*names}.issuperset({*RUNS[-4:], *others})
    (last,) = {*names} - {*RUNS, *others}
    assert len(names) == 5 + len(others)
    assert (kept / last).read_bytes() == b"first\nsecond\n"


def test_a_node_that_goes_takes_its_kept_logs_along_and_the_last_one_the_supervisors(tmp_path: Path) -> None:
    kept = tmp_path / "logs"
    kept.mkdir()
    for name in ("broker-1", "broker-11", "supervisor"):
        (kept / f"{name}-2026-01-01T00-00-00.log").touch()
    remove_kept_logs(str(tmp_path / "broker-1"))
    assert len(list(kept.iterdir())) == 2
    remove_kept_logs(str(tmp_path / "broker-11"))
    remove_kept_logs(str(tmp_path / "broker-12"))
    assert not kept.exists()


def test_the_logs_of_nodes_outlive_a_ray_that_was_killed(tmp_path: Path) -> None:
    logs = tmp_path / "ray" / "session_2026-01-01" / "logs"
    logs.mkdir(parents=True)
    line = "2026-01-01 00:00:00,000 INFO {} rayka.actors.shell: {} runs\n"
    for number, name in enumerate(("mine/broker-1", "mine/broker-1", "mine/supervisor", "users-own")):
        (logs / f"worker-{number}-01-2.err").write_text(f":job_id:01\n{line.format(name, number)}")
    keep_logs_of_ended_ray(str(tmp_path / "ray"), str(tmp_path / "home"))
    kept = {
        each.name.partition("-20")[0]: each.read_text() for each in (tmp_path / "home/mine/logs").iterdir()
    }
    assert kept.keys() == {"broker-1", "supervisor"}
    assert ["0 runs" in kept["broker-1"], "1 runs" in kept["broker-1"]] == [True, True]
    assert [each.name for each in (tmp_path / "home").iterdir()] == ["mine"]
