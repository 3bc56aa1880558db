"""The base of the asynchronous `Admin` and its parts: calls to the active controller, and the errors of refusals.

The timeout of the `Admin` bounds every call. A change of the metadata is complete when every usable broker has applied
it. Kafka: KafkaAdminClient.
"""

from collections.abc import Iterable
from typing import TypeVar

from rayka.client.metadata import ClusterMetadata
from rayka.errors import ApiError, BrokerIdNotRegistered, ErrorCode, error_for
from rayka.ports import Request
from rayka.protocol.membership import MetadataRequest

ResponseT = TypeVar("ResponseT")
# A node that hangs must not use up the whole budget, nor delay the answers of the others.
NODE_TIMEOUT_MS = 3_000


class AdminPart:
    """One part of an `AsyncAdmin`, on the IO thread; its methods are those of `Admin`, with checked arguments."""

    def __init__(self, metadata: ClusterMetadata, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._metadata = metadata
        self._nodes = metadata.nodes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._nodes.cluster_name}>"

    async def _ask(self, request: Request[ResponseT]) -> ResponseT:
        """The active controller's answer. A failed attempt is repeated, so the request may be executed twice."""
        return await self._nodes.call_controller(request, self.timeout_ms)

    async def _registered(self, wanted: Iterable[int] | None) -> list[int]:
        """The wanted brokers, or all registered ones. Raises BrokerIdNotRegistered, naming the registered ones."""
        registered = [each.node_id for each in (await self._ask(MetadataRequest(()))).brokers]
        asked = registered if wanted is None else list(wanted)
        for each in asked:
            if each not in registered:
                known = ", ".join(map(str, registered)) or "none"
                raise BrokerIdNotRegistered(
                    f"cluster {self._nodes.cluster_name!r} has no broker {each}; it has {known}"
                )
        return asked

    async def _until_applied(self, metadata_offset: int) -> None:
        await self._nodes.wait_until_applied(metadata_offset, self.timeout_ms)

    async def _check(self, subject: str, name: str, code: ErrorCode, message: str = "") -> None:
        """Raises the error of a refusal about the subject; `name` is the topic that may be unknown."""
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise await self._metadata.no_such_topic(name, self.timeout_ms)
        if code is not ErrorCode.NONE:
            raise self._refusal(subject, code, message)

    def _refusal(self, subject: str, code: ErrorCode, message: str) -> ApiError:
        """The error that names the subject, its cluster and the node's message once each."""
        said, cluster = message or code.name, f"cluster {self._nodes.cluster_name!r}"
        return error_for(
            code, f"{cluster}: {said}" if said.startswith(subject) else f"{subject} of {cluster}: {said}"
        )
