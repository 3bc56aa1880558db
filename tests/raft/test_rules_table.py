"""The page that links the rules of the quorum to tests is true."""

from tests.rule_pages import checks_of_rules

test_every_rule_has_a_heading_and_a_test, test_the_tests_of_a_rule_exist_and_cite_it = checks_of_rules(
    {"A-quorum.md": [*range(1, 37), 40, 41, *range(45, 52), *range(55, 61), *range(65, 69)]}
)
