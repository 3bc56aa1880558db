"""A rolling upgrade, node by node, from this version to one that says more in every message."""

from pathlib import Path

from rayka.protocol.apis import APIS
from tests.versions.packages import THIS, later_version, with_later_fields
from tests.versions.upgrade import upgrade


def test_a_cluster_becomes_one_of_a_later_version_node_by_node_and_back_under_clients_of_the_former(
    tmp_path: Path,
) -> None:
    with later_version(tmp_path / "package") as later:
        theirs = later.get("protocol.apis.API_BY_NAME")
        for api in APIS:
            more = theirs[api.name].request_type.__struct_fields__
            assert more == (*api.request_type.__struct_fields__, "added_by_a_later_version"), api.name
        assert upgrade(tmp_path / "data", THIS, later) > 0


def test_a_later_field_is_the_last_of_a_message() -> None:
    fields = "    x: int\n    y: int = (\n        1\n    )\n"
    text = f'class A(Message, frozen=True):\n    """A."""\n\n{fields}\n    def f(self): ...\n'
    assert with_later_fields(text).splitlines()[4:8] == [
        "    y: int = (",
        "        1",
        "    )",
        "    added_by_a_later_version: int = 7",
    ]
