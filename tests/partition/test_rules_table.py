"""The pages that link the rules of replication, of fetching and of brokers to tests are true."""

import pytest

from tests.rule_pages import RulesPage, linked_tests

RULES = {
    "B": [*range(1, 7), *range(10, 19), *range(20, 28), *range(30, 34), *range(40, 48)],
    "G": [*range(1, 19)],
    "H": [*range(1, 10)],
}
PAGES = {
    "B": RulesPage("B-replication.md", "B"),
    "G": RulesPage("G-fetch-and-produce.md", "G"),
    "H": RulesPage("H-brokers.md", "H"),
}


@pytest.mark.parametrize("letter", RULES)
def test_every_rule_has_a_heading_and_a_test(letter: str) -> None:
    assert PAGES[letter].untested(RULES[letter]) == []


@pytest.mark.parametrize(
    ("letter", "number"), [(key, each) for key, rules in RULES.items() for each in rules]
)
def test_the_tests_of_a_rule_exist_and_cite_it(letter: str, number: int) -> None:
    PAGES[letter].check(number)


def test_the_tests_that_answer_to_kafkas_exist() -> None:
    below = linked_tests("kafkas-tests.md")
    assert len(below) > 20
    assert [heading for heading, tests in below.items() if not tests] == []
    assert [each for tests in below.values() for each in tests if not each.exists()] == []
