"""Marks of brokers that were to go by the load, in a cluster whose brokers do not come and go any more.

The specification had a range then, and has a number now. No planner looks at such a broker, so nothing else would take
the mark back, and the broker would take no new replica for ever.
"""

from collections.abc import Collection

from rayka.client.admin.admin_configs import LEAVING, is_leaving
from rayka.client.admin.broker_asks import NO_TOPIC, Ask, describe_brokers, mark_brokers
from rayka.ids import Role
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
