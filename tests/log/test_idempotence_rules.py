"""The pages that link the rules of idempotence and of a log's files to tests are true."""

from tests.rule_pages import checks_of_rules

test_every_rule_has_a_heading_and_a_test, test_the_tests_of_a_rule_exist_and_cite_it = checks_of_rules(
    {
        "C-idempotence.md": range(1, 13),
        "F-log.md": [1, 2, 4, 5, 6, 10, 11, 13, *range(20, 24), *range(25, 29)],
    }
)
