"""What scaling has left behind in a cluster whose brokers do not come and go any more: marks of brokers that were to go
by the load, and registrations of brokers that have gone.

The specification had a range then, and has a number now. No planner looks at such a broker, so nothing else would take
the mark back, and the broker would take no new replica for ever.
"""

from collections import Counter
from collections.abc import Collection

from rayka.client.admin.admin_configs import is_leaving
from rayka.client.admin.broker_asks import NO_TOPIC, Ask, describe_brokers, mark_brokers
from rayka.config.cluster_config import ClusterSpec
from rayka.ids import Role
from rayka.protocol.configs import LEAVING
from rayka.protocol.membership import MetadataRequest


async def remove_leftover_marks(ask: Ask, ranged: Collection[Role]) -> list[int]:
    """Takes the marks back of all brokers and coordinators but those of roles that come and go; which these were."""
    cluster = await ask(MetadataRequest(NO_TOPIC))
    fixed = [each.node_id for each in cluster.brokers if set(ranged).isdisjoint(each.roles)]
    described = await describe_brokers(ask, fixed)
    marked = [each for each, config in described.items() if is_leaving(config)]
    if marked:
        await mark_brokers(ask, LEAVING, dict.fromkeys(marked))
    return marked


async def leftover_registrations(ask: Ask, spec: ClusterSpec, running: Collection[int]) -> list[int]:
    """Nodes of which scaling has left only the registration: marked, empty, without an actor, and not in the
    specification. Only the mark tells them from nodes that are away for a while.
    """
    cluster = await ask(MetadataRequest())
    held = Counter(
        each for topic in cluster.topics for partition in topic.partitions for each in partition.replicas
    )
    gone = [
        each.node_id
        for each in cluster.brokers
        if each.node_id not in spec.roles
        and each.node_id not in running
        and not held[each.node_id]
        and spec.ranges.keys().isdisjoint(each.roles)
    ]
    described = await describe_brokers(ask, gone)
    return [each for each, config in described.items() if is_leaving(config)]
