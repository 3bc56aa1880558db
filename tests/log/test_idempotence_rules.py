"""The page that maps the rules of idempotence to tests is true: tests exist and cite their rule, each rule has one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "rayka/docs/rules-idempotence.md"
RULES = range(1, 13)
_ROW = re.compile(r"^\| C(\d+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)


def rows() -> dict[int, list[tuple[str, str]]]:
    """The tests of each rule: file and name."""
    found: dict[int, list[tuple[str, str]]] = {}
    for number, _, cell in _ROW.findall(PAGE.read_text()):
        for part in cell.split("<br>"):
            file, *names = re.findall(r"`([^`]+)`", part)
            found.setdefault(int(number), []).extend((file, name) for name in names)
    return found


def test_every_rule_has_a_row_with_a_test() -> None:
    table = rows()
    assert [number for number in RULES if not table.get(number)] == []


@pytest.mark.parametrize("number", RULES)
def test_the_tests_of_a_rule_exist_and_cite_it(number: int) -> None:
    for file, name in rows()[number]:
        text = (ROOT / "tests" / file).read_text()
        match = re.search(rf"^def {name}\((?:[^()]|\n)*\) -> None:(.*)$", text, re.MULTILINE)
        assert match, f"{file} has no {name}"
        assert str(number) in re.findall(r"\bC(\d+)\b", match[1]), f"{file}: {name} does not cite C{number}"
