"""The part of an `Admin`'s brain that is about the load of brokers and partitions. Rayka's own."""

from rayka.client.admin.admin_load_results import BalancePlan, ClusterLoad
from rayka.client.admin.admin_part import AdminPart
from rayka.protocol.balance import BalanceRequest
from rayka.protocol.load import DescribeLoadRequest
from rayka.protocol.membership import MetadataRequest


class AsyncLoadAdmin(AdminPart):
    """See the module."""

    async def describe(self, topics: tuple[str, ...] | None) -> ClusterLoad:
        """What the active controller knows; with topics, only partitions of these, which have to exist."""
        wanted = None if topics is None else tuple(dict.fromkeys(topics))
        for each in (await self._ask(MetadataRequest(wanted))).topics if wanted else ():
            await self._check(f"topic {each.name!r}", each.name, each.error_code)
        response = await self._ask(DescribeLoadRequest(wanted or None))
        return ClusterLoad.of(response, names=wanted)

    async def balance(self, moves: int) -> BalancePlan:
        """The plan, of which so many moves have begun, once every usable broker knows them."""
        response = await self._ask(BalanceRequest(moves))
        if response.begun_count:
            await self._until_applied(response.metadata_offset)
        return BalancePlan.of(response)
