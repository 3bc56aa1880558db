"""Which brokers and coordinators had come when a cluster that is stopped was stopped: those whose disks are on Ray
nodes.
"""

from collections import Counter
from collections.abc import Collection

from rayka.actors.found_directories import FoundDirectory, look_around
from rayka.actors.names import cluster_directories
from rayka.actors.node_placement import able_ray_nodes
from rayka.actors.ray_nodes import open_ray_nodes, run_on_all
from rayka.actors.scaling.grown_spec import come_and_gone, grown
from rayka.config.cluster_config import ClusterSpec
from rayka.ids import Role, role_of

_LOOK_TIMEOUT_S = 60.0


def with_found_brokers(spec: ClusterSpec) -> ClusterSpec:
    """The spec with those beyond the declared ones; as it is where none come and go."""
    if not spec.ranges:
        return spec
    able = able_ray_nodes(spec, spec.roles, open_ray_nodes())
    answers = run_on_all(able, _LOOK_TIMEOUT_S, look_around, [], cluster_directories(spec))
    found = [each for there in answers.results.values() for each in there.values()]
    return grown(spec, come_and_gone(spec, _of_one_cluster(found)))


def _of_one_cluster(found: Collection[FoundDirectory]) -> list[int]:
    """The nodes that were registered, of the cluster that most controllers belong to."""
    controllers = [each for each in found if role_of(each.node_id) is Role.CONTROLLER and each.cluster_id]
    claims = Counter(each.cluster_id for each in controllers or found if each.cluster_id)
    if not claims:
        return []
    (cluster_id, _), *_ = claims.most_common(1)
    return [each.node_id for each in found if each.cluster_id == cluster_id]
