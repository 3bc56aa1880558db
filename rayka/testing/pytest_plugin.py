"""A fixture for pytest. A conftest that wants it says `pytest_plugins = ["rayka.testing.pytest_plugin"]`.

The plugin is no entry point: else each run of pytest in an environment with rayka would import it, and pytest would
rewrite the assertions of all modules of rayka. Only this module imports pytest, so no other one of rayka imports it.
"""

from collections.abc import Iterator

import pytest

from rayka.testing.in_process_cluster import InProcessCluster, cluster


@pytest.fixture
def rayka_cluster() -> Iterator[InProcessCluster]:
    """A cluster of one broker for one test, started in well under a second: pass it to clients as `cluster=`."""
    with cluster() as running:
        yield running
