"""The option `transport` of clients: checked, and handed to the network of each of them."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka.errors import ConfigError
from rayka.testing.in_process_cluster import InProcessCluster


class Noting:
    """A handle that keeps which transports were asked for."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self._cluster = cluster
        self.name = cluster.name
        self.asked: list[str] = []

    def network(self, transport: str = "auto") -> Any:
        self.asked.append(transport)
        return self._cluster.network()


@pytest.fixture(scope="module")
def handle() -> Iterator[Noting]:
    with rayka.testing.cluster() as cluster:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("a")
        yield Noting(cluster)


CLIENTS: list[Callable[..., Any]] = [
    rayka.Producer,
    rayka.Admin,
    rayka.Consumer,
    lambda **options: rayka.Consumer("a", **options),
]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("options", "expected"), [({}, "auto"), ({"transport": "ray"}, "ray")])
def test_each_client_asks_for_a_network_of_its_transport(
    handle: Noting, client: Callable[..., Any], options: dict[str, Any], expected: str
) -> None:
    handle.asked.clear()
    with client(cluster=handle, **options):
        assert set(handle.asked) == {expected}


def test_a_read_asks_for_networks_of_its_transport(handle: Noting) -> None:
    handle.asked.clear()
    assert list(rayka.read("a", cluster=handle, transport="ray")) == []
    assert set(handle.asked) == {"ray"}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("wrong", ["tcp", "", None, "AUTO", 1])
def test_another_transport_is_refused_by_name(client: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"transport: Input should be 'auto' or 'ray', found "):
        client(cluster="unused", transport=wrong)
