"""The part of an `Admin`'s brain that is about load, balance and what the cluster decides by itself. Rayka's own."""

from rayka.client.admin.admin_load_results import BalancePlan, BalanceStatus, ClusterLoad, EventInfo
from rayka.client.admin.admin_part import AdminPart
from rayka.protocol.balance import BalanceRequest, CancelBalanceRequest, DescribeBalanceRequest
from rayka.protocol.events import DescribeEventsRequest
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
        """The plan, once every usable broker knows of the moves that have begun."""
        response = await self._ask(BalanceRequest(moves))
        if response.begun_count:
            await self._until_applied(response.metadata_offset)
        return BalancePlan.of(response)

    async def describe_balance(self) -> BalanceStatus:
        """How far the balance is."""
        return BalanceStatus.taken_from(await self._ask(DescribeBalanceRequest()))

    async def cancel_balance(self) -> bool:
        """Whether one was under way; then every usable broker knows that it is not any more."""
        response, may_have_run = await self._nodes.call_controller_again(
            CancelBalanceRequest(), self.timeout_ms
        )
        if response.is_cancelled:
            await self._until_applied(response.metadata_offset)
        return response.is_cancelled or may_have_run

    async def events(self, since: int, count: int) -> list[EventInfo]:
        """The newest events of those after one, the oldest first."""
        response = await self._ask(DescribeEventsRequest(since, count))
        return [EventInfo.taken_from(each) for each in response.events]
