"""The topics that the cluster creates for itself: a broker asks the controller, which knows it by its epoch.

Kafka: `AutoTopicCreationManager`.
"""

from rayka.errors import ErrorCode, error_for
from rayka.node.broker_lifecycle import BrokerLifecycle
from rayka.node.controller_link import ControllerLink
from rayka.protocol.topics import CreateTopicsRequest, NewTopic

_CALL_TIMEOUT_MS = 5_000


class InternalTopics:
    """Creates internal topics when they are needed for the first time."""

    def __init__(self, lifecycle: BrokerLifecycle, link: ControllerLink, node_id: int) -> None:
        self._lifecycle = lifecycle
        self._link = link
        self._node_id = node_id

    async def create(self, topic: NewTopic) -> int:
        """Returns when the topic is there, also if it was before: the metadata offset of a broker that knows it.
        Raises the ApiError that refuses it.
        """
        request = CreateTopicsRequest((topic,), self._node_id, self._lifecycle.broker_epoch)
        response = await self._link.call(request, _CALL_TIMEOUT_MS)
        (result,) = response.topics
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise error_for(result.error_code, result.error_message)
        return response.metadata_offset
