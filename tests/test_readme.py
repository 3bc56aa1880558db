"""The snippets of the README and of the guide: every Python block parses, and what can run without Ray does."""

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rayka.config.cluster_config import ClusterSpec
from tests import readme_run
from tests.tidy import ROOT

README_LINES_MAX = 150
PAGES = readme_run.pages()
BLOCKS = [each for page in PAGES for each in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]


def test_the_readme_is_short() -> None:
    assert (ROOT / "README.md").read_text().count("\n") <= README_LINES_MAX


def test_the_readme_links_to_every_page_of_the_guide() -> None:
    assert sorted(PAGES[1:]) == sorted((ROOT / "rayka/docs/guide").glob("*.md"))


@pytest.mark.parametrize("block", BLOCKS)
def test_a_python_block_parses(block: str) -> None:
    assert ast.parse(block).body


def test_snippets_are_found_in_their_order_by_section_and_language() -> None:
    page = (
        "## One\n```sh\nls  # list\n```\n```\nls [FILE]\n```\n## Two\n```python\n## no section\nx = 1\n```\n"
    )
    assert readme_run.blocks(page) == [
        ("One", "sh", "ls  # list\n"),
        ("Two", "python", "## no section\nx = 1\n"),
    ]


def test_every_snippet_can_be_run() -> None:
    found = readme_run.all_blocks()
    assert [each.text for each in found if each.language == "python"] == BLOCKS
    assert {each.language for each in found} == set(readme_run.RUNNERS)


@pytest.mark.parametrize(
    ("block", "place_of_failure"),
    [
        (("", "sh", "true\nls no-such-file  # a comment\n"), "ls no-such-file"),
        (("", "python", "1 / 0"), "python"),
    ],
)
def test_a_snippet_that_fails_is_named(
    block: tuple[str, str, str], place_of_failure: str, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    place = readme_run.Place(
        tmp_path / "project", {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    )
    with pytest.raises(readme_run.SnippetFailed, match=place_of_failure):
        readme_run.RUNNERS[block[1]](readme_run.Block(*block), place)


def test_the_guides_own_test_passes(tmp_path: Path) -> None:
    (block,) = [each for each in BLOCKS if "def test_" in each]
    (tmp_path / "test_block.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in run.stdout, run.stdout


def test_the_readmes_producing_and_consuming_work_on_a_cluster_in_this_process(tmp_path: Path) -> None:
    """The blocks of Produce and Consume, one program, with the cluster's name bound to one for tests."""
    produce, send_batch, consume = (
        next(each for each in BLOCKS if marker in each)
        for marker in ("value_serializer", "pa.table", "rayka.read(")
    )
    program = "\n".join([produce, send_batch, consume]).replace('cluster="rayka"', "cluster=cluster")
    body = "".join(f"    {line}\n" for line in program.split("\n"))
    source = f"import rayka, rayka.testing\nwith rayka.testing.cluster() as cluster:\n{body}"
    run = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("\n") == 3


def test_the_guides_delivery_recipes_do_what_they_promise(tmp_path: Path) -> None:
    """One program, with the cluster's name bound to one for tests, that has one record of JSON and one of none."""
    recipes = readme_run.blocks((ROOT / "rayka/docs/guide/delivery.md").read_text())
    program = "\n".join(each.text for each in recipes).replace('cluster="rayka"', "cluster=cluster")
    setup = """
import os, rayka, rayka.testing
os.chdir(os.environ["SCRATCH"])
with rayka.testing.cluster(config={"group.initial.rebalance.delay.ms": 0}) as cluster:
    with rayka.Admin(cluster=cluster) as admin, rayka.Producer(cluster=cluster) as producer:
        admin.create_topic("departures", partitions=6)
        producer.send("departures", b"{}", b"UA", partition=0)
        producer.send("departures", b"none", b"AA", partition=0)
"""
    end = (
        "print([(each.value, each.headers[0]) for each in rayka.read('departures-failed', cluster=cluster)])"
    )
    source = setup + "".join(f"    {line}\n" for line in f"{program}\n{end}".split("\n"))
    environment = {**os.environ, "SCRATCH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == [
        "shown: [b'{}', b'none']",
        "[(b'AA', 1), (b'UA', 1)]",
        "[(b'order-1', b'paid'), (b'order-2', b'paid')]",
        "[(b'none', ('place', b'departures-0 offset 1'))]",
    ]


def test_the_guides_consumer_ends_cleanly_with_ctrl_c(tmp_path: Path) -> None:
    (consume,) = (each for each in BLOCKS if "except KeyboardInterrupt" in each)
    endless = consume[consume.index("with rayka.Consumer") :].replace('cluster="rayka"', "cluster=cluster")
    setup = (
        "import rayka, rayka.testing\n"
        "with rayka.testing.cluster() as cluster:\n"
        "    with rayka.Admin(cluster=cluster) as admin: admin.create_topic('departures')\n"
        "    with rayka.Producer(cluster=cluster) as producer: producer.send('departures', b'one')\n"
    )
    source = setup + "".join(f"    {line}\n" for line in endless.split("\n"))
    with subprocess.Popen(
        [sys.executable, "-u", "-c", source],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert "b'one'" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            said, errors = process.communicate(timeout=240)
        finally:
            process.kill()
    assert (process.returncode, said, errors) == (0, "done\n", "")


def test_the_shipped_cluster_yaml_and_the_one_of_the_guide_are_valid(tmp_path: Path) -> None:
    (shown,) = [each.text for each in readme_run.all_blocks() if each.language == "yaml"]
    (tmp_path / "cluster.yaml").write_text(shown)
    for path in (tmp_path / "cluster.yaml", ROOT / "cluster.yaml"):
        assert ClusterSpec.load(path).name == "rayka"
