"""The pages that map Kafka's rules to tests: what they say, and whether the tests they name exist and cite the rule."""

import re
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path(__file__).parents[1]


class RulesPage:
    """A page of `rayka/docs` whose tables have a row `| A7 | rule | tests |` for each rule of one letter."""

    def __init__(self, name: str, letter: str) -> None:
        self._page = _ROOT / "rayka/docs" / name
        self._letter = letter

    def tests(self) -> dict[int, list[tuple[str, str]]]:
        """The tests of each rule: file and name."""
        row = re.compile(rf"^\| {self._letter}(\d+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
        found: dict[int, list[tuple[str, str]]] = {}
        for number, _, cell in row.findall(self._page.read_text()):
            for part in cell.split("<br>"):
                file, *names = re.findall(r"`([^`]+)`", part)
                found.setdefault(int(number), []).extend((file, name) for name in names)
        return found

    def untested(self, numbers: Iterable[int]) -> list[int]:
        """Rules without a row, or without a test in it."""
        tests = self.tests()
        return [number for number in numbers if not tests.get(number)]

    def check(self, number: int) -> None:
        """Each test of the rule exists, and cites the rule behind its signature."""
        for file, name in self.tests()[number]:
            text = (_ROOT / "tests" / file).read_text()
            signature = rf"^(?:async )?def {name}\(.*?\) -> None:(.*?)$"
            match = re.search(signature, text, re.MULTILINE | re.DOTALL)
            assert match, f"{file} has no {name}"
            cited = re.findall(rf"\b{self._letter}(\d+)\b", match[1])
            assert str(number) in cited, f"{file}: {name} does not cite {self._letter}{number}"


def named_under(heading: str, page: str) -> list[tuple[str, str]]:
    """File and name of each test that the tables below a heading of a page name."""
    section = (
        (_ROOT / "rayka/docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    )
    found = []
    for part in re.split(r"<br>|\|", section):
        file, *names = re.findall(r"`([^`]+)`", part) or [""]
        if file.endswith(".py"):
            found += [(file, name) for name in names]
    return found


def is_test(file: str, name: str) -> bool:
    """Whether the file has a test, or a class of hypothesis, of that name."""
    text = (_ROOT / "tests" / file).read_text()
    return re.search(rf"^(?:(?:async )?def {name}\(|{name} = )", text, re.MULTILINE) is not None
