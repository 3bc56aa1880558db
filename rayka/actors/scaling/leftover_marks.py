"""Marks of brokers that were to go by the load, in a cluster whose brokers do not come and go any more.

The specification had a range then, and has a number now. No planner looks at such a broker, so nothing else would take
the mark back, and the broker would take no new replica for ever.
"""

from collections.abc import Collection

from rayka.client.admin.admin_configs import LEAVING, is_leaving
from rayka.client.admin.drained_brokers import Ask
from rayka.errors import ErrorCode, error_for
from rayka.ids import Role
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    ConfigResourceName,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.membership import MetadataRequest

_NO_TOPIC = ("",)
_DELETE = (ConfigChange(LEAVING, AlterConfigOp.DELETE),)


async def remove_leftover_marks(ask: Ask, ranged: Collection[Role]) -> list[int]:
    """Takes the marks back of all brokers and coordinators but those of roles that come and go; which these were."""
    cluster = await ask(MetadataRequest(_NO_TOPIC))
    fixed = [str(each.node_id) for each in cluster.brokers if set(ranged).isdisjoint(each.roles)]
    if not fixed:
        return []
    names = tuple(ConfigResourceName(ResourceType.BROKER, each) for each in fixed)
    described = (await ask(DescribeConfigsRequest(names))).resources
    marked = [each.resource_name for each in described if is_leaving(each)]
    if marked:
        altered = tuple(AlteredResource(ResourceType.BROKER, each, _DELETE) for each in marked)
        for result in (await ask(IncrementalAlterConfigsRequest(altered))).resources:
            if result.error_code is not ErrorCode.NONE:
                raise error_for(result.error_code, result.error_message)
    return [int(each) for each in marked]
