"""The page that maps the rules of idempotence to tests is true."""

import pytest

from tests.rules import RulesPage

PAGE = RulesPage("rules-idempotence.md", "C")
RULES = range(1, 13)


def test_every_rule_has_a_row_with_a_test() -> None:
    assert PAGE.untested(RULES) == []


@pytest.mark.parametrize("number", RULES)
def test_the_tests_of_a_rule_exist_and_cite_it(number: int) -> None:
    PAGE.check(number)
