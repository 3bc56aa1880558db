"""The page that maps the rules of replication to tests is true."""

import pytest

from tests.rules import RulesPage, is_test, named_under

RULES = {
    "B": [*range(1, 7), *range(10, 19), *range(20, 28), *range(30, 34), *range(40, 48)],
    "G": [*range(1, 19)],
    "H": [*range(1, 9)],
}
PAGES = {letter: RulesPage("rules-replication.md", letter) for letter in RULES}


@pytest.mark.parametrize("letter", RULES)
def test_every_rule_has_a_row_with_a_test(letter: str) -> None:
    assert PAGES[letter].untested(RULES[letter]) == []


@pytest.mark.parametrize(
    ("letter", "number"), [(key, each) for key, rules in RULES.items() for each in rules]
)
def test_the_tests_of_a_rule_exist_and_cite_it(letter: str, number: int) -> None:
    PAGES[letter].check(number)


def test_the_tests_that_answer_to_kafkas_exist() -> None:
    named = named_under("What Kafka's own tests assert", "rules-replication.md")
    assert named
    assert [each for each in named if not is_test(*each)] == []
