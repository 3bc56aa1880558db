"""The script that merges modules: what it makes of two small ones, and of the files that name them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.merge_modules import Move, cycles, in_order, main, rewritten

HOLES = '''"""Gaps between segments."""

from struct import Struct

from rayka.log.files import Files

_SIZE = 8


class Hole(Files):
    size = Struct("q").size + _SIZE
'''
DAMAGE = '''"""Damage that recovery finds."""

from rayka.log.holes import Hole

_SIZE = 4


def damage(hole: Hole) -> int:
    return hole.size - _SIZE
'''


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the two modules, a test that imports both, and a page with a link."""
    files = {
        "rayka/__init__.py": "",
        "rayka/log/__init__.py": "",
        "rayka/log/holes.py": HOLES,
        "rayka/log/damage.py": DAMAGE,
        "rayka/log/files.py": '"""Files."""\n\n\nclass Files:\n    pass\n',
        "tests/test_log.py": "from rayka.log import files, holes\nfrom rayka.log.damage import damage\n\n"
        "assert damage(holes.Hole()) == 12\n",
        "docs/log.md": "[`Hole`](../rayka/log/holes.py)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for arguments in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_plan(checkout: Path, plan: str, *options: str) -> int:
    (checkout / "plan").write_text(plan)
    return main(["plan", *options])


def test_a_merged_module_works_and_everything_names_it(checkout: Path, capsys: pytest.CaptureFixture[str]):
    assert run_plan(checkout, "rayka/log/holes.py -> rayka/log/damage.py  # one idea\n") == 0
    assert not Path("rayka/log/holes.py").exists()
    merged = Path("rayka/log/damage.py").read_text()
    assert merged.startswith('"""Damage that recovery finds."""')
    assert "# Gaps between segments." in merged
    assert "_SIZE_of_holes = 8" in merged  # the target has a _SIZE too
    assert "_SIZE is _SIZE_of_holes now" in capsys.readouterr().out.replace(
        "stands in rayka/log/damage.py too, and ", ""
    )
    test = Path("tests/test_log.py").read_text()
    assert "from rayka.log import files\nfrom rayka.log import damage\n" in test
    assert "damage.Hole()" in test
    assert Path("docs/log.md").read_text() == "[`Hole`](../rayka/log/damage.py)\n"
    subprocess.run(
        [sys.executable, "-c", "from rayka.log.damage import *; assert damage(Hole()) == 12"], check=True
    )


def test_a_module_without_a_target_is_renamed(checkout: Path):
    assert run_plan(checkout, "rayka/log/holes.py -> rayka/log/gaps.py\n") == 0
    assert Path("rayka/log/gaps.py").read_text() == HOLES
    assert "from rayka.log.gaps import Hole" in Path("rayka/log/damage.py").read_text()


def test_a_public_name_that_stands_in_both_stops_the_merge(
    checkout: Path, capsys: pytest.CaptureFixture[str]
):
    Path("rayka/log/files.py").write_text("class Hole:\n    pass\n")
    assert run_plan(checkout, "rayka/log/holes.py -> rayka/log/files.py\n") == 1
    assert "Hole stands in rayka/log/files.py too" in capsys.readouterr().out
    assert Path("rayka/log/holes.py").read_text() == HOLES


def test_a_check_changes_nothing_and_names_cycles(checkout: Path, capsys: pytest.CaptureFixture[str]):
    plan = (
        "rayka/log/damage.py -> rayka/log/files.py\n"  # which `holes` imports, and `damage` imports `holes`
    )
    assert run_plan(checkout, plan, "--check") == 0
    assert "cycle:\n    rayka/log/files.py\n    rayka/log/holes.py\n" in capsys.readouterr().out
    assert Path("rayka/log/damage.py").read_text() == DAMAGE


def test_statements_stand_behind_what_they_need_when_they_run():
    later = ["def f() -> B: return A", "class B(C): ...", "C = 1", "A = B"]
    assert in_order(later) == ["C = 1", "class B(C): ...", "def f() -> B: return A", "A = B"]


def test_a_name_that_only_looks_like_the_module_stays():
    move = Move("rayka/log/holes.py", "rayka/log/damage.py")
    text = "from rayka.log.damage import holes_of\n\nself.holes.count, holes = 1, 2\n"
    assert rewritten(text, move, is_code=True) == text


def test_cycles_are_found_over_several_modules():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}
    assert cycles(imports) == [{"a", "b", "c"}]
