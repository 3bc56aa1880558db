"""The pages for engineers name files, classes and methods that are in the code.

A hop that was renamed or moved fails here: the page is to say what does its work now.
"""

import re

from tests import tidy
from tests.tidy import ROOT

PAGES = [each for each in tidy.tracked() if each.name.endswith(".md")]


def test_pages_name_what_is_in_the_code() -> None:
    found = [each for page in PAGES for each in tidy.missing_names(page)]
    assert not found, "\n".join(["", *found])


def test_pages_name_modules_that_exist() -> None:
    missing = [
        f"{page.name}: names {name}, which is not there"
        for page in PAGES
        for name in re.findall(r"`(\w+/[\w/]*\w\.py)`", page.text)
        if not any((root / name).exists() for root in (ROOT, ROOT / "rayka", ROOT / "tests"))
    ]
    assert not missing, "\n".join(["", *missing])
