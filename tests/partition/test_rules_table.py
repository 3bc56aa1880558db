"""The pages that link the rules of replication, of fetching and of brokers to tests are true."""

from tests.rule_pages import checks_of_rules, linked_tests

test_every_rule_has_a_heading_and_a_test, test_the_tests_of_a_rule_exist_and_cite_it = checks_of_rules(
    {
        "B-replication.md": [*range(1, 7), *range(10, 19), *range(20, 28), *range(30, 34), *range(40, 48)],
        "G-fetch-and-produce.md": range(1, 19),
        "H-brokers.md": range(1, 10),
    }
)


def test_the_tests_that_answer_to_kafkas_exist() -> None:
    below = linked_tests("kafkas-tests.md")
    assert len(below) > 20
    assert [heading for heading, tests in below.items() if not tests] == []
    assert [each for tests in below.values() for each in tests if not each.exists()] == []
