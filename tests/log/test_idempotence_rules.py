"""The pages that link the rules of idempotence and of a log's files to tests are true."""

import pytest

from tests.rule_pages import RulesPage

RULES = {"C": [*range(1, 13)], "F": [1, 2, 4, 5, 6, 10, 13]}
PAGES = {"C": RulesPage("C-idempotence.md", "C"), "F": RulesPage("F-log.md", "F")}


@pytest.mark.parametrize("letter", RULES)
def test_every_rule_has_a_heading_and_a_test(letter: str) -> None:
    assert PAGES[letter].untested(RULES[letter]) == []


@pytest.mark.parametrize(
    ("letter", "number"), [(key, each) for key, rules in RULES.items() for each in rules]
)
def test_the_tests_of_a_rule_exist_and_cite_it(letter: str, number: int) -> None:
    PAGES[letter].check(number)
