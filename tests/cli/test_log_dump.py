"""`rayka log dump`: what it prints of a log, of damage, and that it disturbs no node."""

import json
import os
from pathlib import Path

import pytest

from rayka.cli.main import run
from rayka.log.local_disk import LocalDisk
from tests.cli.log_support import CONFIG, TIME_MS, write_cleaned, write_metadata, write_orders
from tests.log.support import batch, opened_log

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Here: a partition's log and a controller's."""
    write_orders(tmp_path)
    write_metadata(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _expect(name: str, printed: str) -> None:
    """Golden output; after a deliberate change: `RAYKA_REWRITE=1 pytest tests/cli`, and read the difference."""
    path = GOLDEN / name
    if os.environ.get("RAYKA_REWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(printed)
    assert printed == path.read_text()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("dump-batches.txt", ["orders-0"]),
        ("dump-records.txt", ["orders-0/00000000000000000000.log", "--records"]),
        ("dump-metadata.txt", ["__cluster_metadata-0", "--metadata"]),
    ],
)
def test_what_is_printed(
    name: str, arguments: list[str], data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "dump", *arguments]) == 0
    _expect(name, capsys.readouterr().out)


def test_json_has_everything(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", "orders-0/00000000000000000000.log", "--records", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["problems"], found["notes"]) == ("segment", [], [])
    first, second = found["batches"]
    assert (first["base_offset"], first["last_offset"], first["leader_epoch"], first["is_crc_valid"]) == (
        0,
        1,
        0,
        True,
    )
    assert first["records"][0] == {
        "offset": 0,
        "timestamp_ms": 1_700_000_000_000,
        "key": "k",
        "value": "one",
        "headers": [["h", "x"]],
    }
    assert (second["codec"], second["producer_id"]) == ("zstd", -1)


def test_what_compaction_has_left_is_printed_and_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # F22 F23 F25
    """Batches without records, offsets that are missing, and from when on tombstones may go."""
    write_cleaned(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(["log", "dump", ".", "--verify"]) == 0
    assert "no damaged files" in capsys.readouterr().out
    assert run(["log", "dump", "table-0", "--records"]) == 0
    _expect("dump-cleaned.txt", capsys.readouterr().out)
    assert run(["log", "dump", "table-0/00000000000000000000.log", "--records", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    batches = {each["base_offset"]: each for each in found["batches"]}
    horizons = {offset: each["delete_horizon_ms"] for offset, each in batches.items()}
    assert horizons == {2: None, 4: TIME_MS + 1000, 6: None, 8: None, 9: None}
    assert (batches[8]["record_count"], batches[8]["records"], batches[8]["producer_id"]) == (0, [], 5)


def test_a_timestamp_that_is_no_date_is_printed_in_milliseconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = LocalDisk()
    log = opened_log(disk, str(tmp_path / "orders-0"), CONFIG)
    log.append_as_leader([batch([b"v"], 1 << 60)], 0, now_ms=0)
    log.close()
    disk.close()
    assert run(["log", "dump", str(tmp_path), "--records"]) == 0
    assert f"{1 << 60} ms" in capsys.readouterr().out


def test_a_data_directory_is_all_its_logs(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", ".", "--verify"]) == 0
    assert capsys.readouterr().out == "13 files, 11 batches; no damaged files\n"


# ---- Damage ----------------------------------------------------------------------------------------------------------


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "position", "problem"),
    [
        ("orders-0/00000000000000000000.log", 200, "position 0, offset 0, has a wrong CRC"),
        (
            "orders-0/00000000000000000000.log",
            248 + 16,
            "no batch at position 248: a batch has magic 82, found 83",
        ),
        ("orders-0/00000000000000000000.log", 248 + 7, "no batch with offset 2 at position 248"),
        ("orders-0/00000000000000000000.index", 7, "no batch with offset 2 at position 249"),
        ("orders-0/00000000000000000000.timeindex", 8, "ends at offset 16777218"),
        ("orders-0/leader-epoch-checkpoint", 0, "it is damaged"),
        ("__cluster_metadata-0/quorum-state", 0, "it is damaged"),
        ("__cluster_metadata-0/00000000000000000006-0000000001.checkpoint", 708, "has a wrong CRC"),
    ],
)
def test_damage_is_named_and_verify_exits_with_1(
    name: str, position: int, problem: str, data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _flip(data_dir / name, position)
    assert run(["log", "dump", ".", "--verify"]) == 1
    printed = capsys.readouterr().out
    assert "damaged: " in printed
    assert problem in printed
    assert "; 1 damaged file\n" in printed or "; 2 damaged files\n" in printed
    assert run(["log", "dump", name]) == 0
    assert run(["log", "dump", ".", "--json"]) == 0


def test_a_snapshot_without_its_footer_is_damaged(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data_dir / "__cluster_metadata-0/00000000000000000006-0000000001.checkpoint"
    path.write_bytes(path.read_bytes()[:-136])
    assert run(["log", "dump", str(path), "--verify"]) == 1
    assert "not whole: no footer" in capsys.readouterr().out


def test_a_batch_that_is_being_written_is_no_damage(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, is_damage in ((3, False), (0, True)):
        path = data_dir / f"orders-0/{number:020d}.log"
        path.write_bytes(path.read_bytes()[:-50])
        assert run(["log", "dump", str(path), "--verify"]) == int(is_damage)
        assert (
            f"{'damaged' if is_damage else 'note'}: the file ends within a batch" in capsys.readouterr().out
        )


def test_offsets_that_go_back_are_damage(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data_dir / "orders-0/00000000000000000000.log"
    content = path.read_bytes()
    path.write_bytes(content[248:] + content[:248])
    assert run(["log", "dump", str(path), "--verify"]) == 1
    assert "offsets go back to 0, expected 3 or later" in capsys.readouterr().out


# ---- A node that runs ------------------------------------------------------------------------------------------------


def test_a_lock_is_not_taken_and_nothing_is_written(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = LocalDisk()
    lock = disk.lock(str(data_dir / ".lock"))
    before = {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")}
    for path in data_dir.rglob("*.log"):
        path.chmod(0o400)
    assert run(["log", "dump", ".", "--records"]) == 0
    assert {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")} == before
    lock.release()
    disk.close()


@pytest.mark.parametrize(("path", "advice"), [("empty", "holds no log"), ("note.txt", "is no file of a log")])
def test_what_is_no_log_is_refused(
    path: str,
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").touch()
    assert run(["log", "dump", path]) == 1
    assert advice in capsys.readouterr().err
    assert run(["log", "dump", "missing"]) == 2
