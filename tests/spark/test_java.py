"""Which Java is found, and what is said when it is none or too old."""

import os
from contextlib import contextmanager

import pytest

from rayka.errors import UnavailableError
from rayka.spark.java import parse_java_version, require_java


@contextmanager
def only_java(directory, says):
    """A PATH whose one program is a `java` that says so."""
    kept = {name: os.environ.get(name) for name in ("PATH", "JAVA_HOME")}
    if says:
        program = directory / "java"
        program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        program.chmod(0o755)
    os.environ["PATH"] = str(directory)
    os.environ.pop("JAVA_HOME", None)
    try:
        yield
    finally:
        os.environ.update({name: value for name, value in kept.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_the_major_version_is_read_from_what_java_prints(text, version):
    assert parse_java_version(text) == version


def test_a_recent_java_will_do(tmp_path):
    with only_java(tmp_path, 'openjdk version "21.0.1"'):
        assert require_java() == 21


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ("", "there is no Java"),
        ('openjdk version "11.0.2"', "is Java 11"),
        ("hello", "does not say its version"),
    ],
)
def test_no_java_17_is_an_error_that_says_how_to_get_it(tmp_path, says, found):
    with only_java(tmp_path, says), pytest.raises(UnavailableError) as refused:
        require_java()
    assert found in str(refused.value)
    assert "openjdk-17-jre-headless" in str(refused.value)
