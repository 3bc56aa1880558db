"""The page that links the rules of the quorum to tests is true."""

import pytest

from tests.rule_pages import RulesPage

PAGE = RulesPage("A-quorum.md", "A")
RULES = [*range(1, 37), 40, 41, *range(45, 52), *range(55, 61), *range(65, 69)]


def test_every_rule_has_a_heading_and_a_test() -> None:
    assert PAGE.untested(RULES) == []


@pytest.mark.parametrize("number", RULES)
def test_the_tests_of_a_rule_exist_and_cite_it(number: int) -> None:
    PAGE.check(number)
