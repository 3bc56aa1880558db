"""Metadata on a broker: brokers and topics as in the image that it follows. Kafka: `KafkaApis`."""

from rayka.metadata.response import metadata_steps
from rayka.node.metadata_follower import MetadataFollower
from rayka.node.storage.data_directories import DataDirectories
from rayka.node.turns import result_in_turns
from rayka.protocol.membership import MetadataRequest, MetadataResponse

METADATA_TIMEOUT_MS = 10_000  # how long a request waits for the offset that it names


class MetadataHandler:
    """Answers Metadata."""

    def __init__(self, directories: DataDirectories, follower: MetadataFollower) -> None:
        self._directories = directories
        self._follower = follower

    async def handle(self, request: MetadataRequest) -> MetadataResponse:
        """Waits for the offset that the request names."""
        follower = self._follower
        await follower.wait_for(request.min_metadata_offset, METADATA_TIMEOUT_MS)
        steps = metadata_steps(
            follower.image,
            request,
            cluster_id=self._directories.cluster_id,
            controller_id=follower.controller_id,
        )
        return await result_in_turns(steps)
