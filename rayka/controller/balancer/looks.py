"""What the active controller looks after from time to time: what is gone is made anew first, then a balance goes on."""

from rayka.controller.balancer.balance_looks import go_on_balancing, lead_again
from rayka.controller.balancer.heal_requests import heal
from rayka.controller.controller_timers import LookAfterReplicas
from rayka.controller.decided_events import DecidedEvents
from rayka.controller.request_context import RequestContext
from rayka.metadata.effective_configs import broker_config
from rayka.metadata.metadata_records import MetadataRecord
from rayka.shard.shard import Result, Steps


def look_after_replicas(context: RequestContext, request: LookAfterReplicas) -> Steps[MetadataRecord, int]:
    """One look. The response: how many moves of healing have begun."""
    config, events = broker_config(context.image, context.config), DecidedEvents(context)
    yield from lead_again(context, context.balance.settle(context.image, context.now_ms))
    gone, begun_count = yield from heal(context, config, events, due_ms=request.due_ms)
    is_healing = gone.is_anything and not context.moves.is_idle
    yield from go_on_balancing(context, config, events, is_healing=is_healing)
    timers = context.timers.after_look(
        context.now_ms,
        timeout_ms=config.broker_unavailable_timeout_ms,
        is_idle=context.moves.is_idle and context.balance.is_idle,
    )
    return Result((), begun_count, timers)
