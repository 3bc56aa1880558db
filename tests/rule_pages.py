"""The pages of `tests/rules`: the tests that they link to, and whether these exist and cite the rule."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

_TESTS = Path(__file__).parent
_PAGES = _TESTS / "rules"


class Test(NamedTuple):
    """A test that a page links to: its file, relative to `tests`, and its name."""

    __test__ = False

    file: str
    name: str

    def exists(self) -> bool:
        """Whether the file has a test, or a class of hypothesis, of that name."""
        return (
            re.search(rf"^(?:(?:async )?def {self.name}\(|{self.name} = )", self._text(), re.MULTILINE)
            is not None
        )

    def cites(self, rule: str) -> bool:
        """Whether the comment behind the signature names the rule."""
        signature = rf"^(?:async )?def {self.name}\(.*?\) -> None:(.*?)$"
        match = re.search(signature, self._text(), re.MULTILINE | re.DOTALL)
        return match is not None and rule in re.findall(r"\b[A-Z]\d+\b", match[1])

    def _text(self) -> str:
        path = _TESTS / self.file
        return path.read_text() if path.exists() else ""


def linked_tests(page: str) -> dict[str, list[Test]]:
    """The tests that a page links to, by the heading above them."""
    _, *parts = re.split(r"^## (.*)$", (_PAGES / page).read_text(), flags=re.MULTILINE)
    links = [re.findall(r"^- \[(\w+)\]\(\.\./([\w/]+\.py)\)$", text, re.MULTILINE) for text in parts[1::2]]
    return {
        heading: [Test(file, name) for name, file in found]
        for heading, found in zip(parts[::2], links, strict=True)
    }


class RulesPage:
    """A page with a heading for each rule of one letter."""

    def __init__(self, name: str, letter: str) -> None:
        self._tests = linked_tests(name)
        self._letter = letter

    def untested(self, numbers: Iterable[int]) -> list[int]:
        """Rules without a heading, or without a test below it."""
        return [number for number in numbers if not self._tests.get(f"{self._letter}{number}")]

    def check(self, number: int) -> None:
        """Each test of the rule exists, and cites the rule behind its signature."""
        rule = f"{self._letter}{number}"
        for test in self._tests[rule]:
            assert test.exists(), f"{test.file} has no {test.name}"
            assert test.cites(rule), f"{test.file}: {test.name} does not cite {rule}"


def checks_of_rules(
    rules: Mapping[str, Sequence[int]],
) -> tuple[Callable[[str], None], Callable[[str, int], None]]:
    """The two tests of pages that are named by their files; a page's letter is its name's first."""
    pages = {name: RulesPage(name, name[0]) for name in rules}

    @pytest.mark.parametrize("page", rules)
    def test_every_rule_has_a_heading_and_a_test(page: str) -> None:
        assert pages[page].untested(rules[page]) == []

    @pytest.mark.parametrize(
        ("page", "number"), [(page, number) for page, numbers in rules.items() for number in numbers]
    )
    def test_the_tests_of_a_rule_exist_and_cite_it(page: str, number: int) -> None:
        pages[page].check(number)

    return test_every_rule_has_a_heading_and_a_test, test_the_tests_of_a_rule_exist_and_cite_it
