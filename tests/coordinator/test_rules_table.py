"""The page that links the rules of groups to tests is true."""

from tests.rule_pages import checks_of_rules

test_every_rule_has_a_heading_and_a_test, test_the_tests_of_a_rule_exist_and_cite_it = checks_of_rules(
    {"E-groups.md": [*range(1, 11), 17]}
)
