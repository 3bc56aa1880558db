"""The pages for engineers name classes and methods that are in the code.

A hop that was renamed or moved fails here: the page is to say what does its work now.
"""

from tests import tidy


def test_pages_name_what_is_in_the_code() -> None:
    pages = [each for each in tidy.tracked() if each.name.endswith(".md")]
    found = [each for page in pages for each in tidy.missing_names(page)]
    assert not found, "\n".join(["", *found])
