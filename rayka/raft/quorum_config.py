"""The timeouts and switches of one replica of the quorum, as Kafka's `QuorumConfig` has them (A10-A14)."""

from dataclasses import dataclass

from rayka.config.broker_config import BrokerConfig
from rayka.raft.voters import SUPPORTED_KRAFT_VERSIONS, VersionRange

CHECK_QUORUM_FACTOR = 1.5
_FETCH_MAX_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    """The configuration of one replica."""

    election_timeout_ms: int = 1_000
    fetch_timeout_ms: int = 2_000
    election_backoff_max_ms: int = 1_000
    request_timeout_ms: int = 2_000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = _FETCH_MAX_WAIT_MS
    fetch_max_bytes: int = 4 << 20
    auto_join: bool = False
    kraft_versions: VersionRange = SUPPORTED_KRAFT_VERSIONS

    @classmethod
    def of(cls, config: BrokerConfig) -> "QuorumConfig":
        """Reads the configuration of a controller.

        A fetch waits for news at a quiet leader for at most half of the shorter timeout. A fetch that waited longer
        than the timeouts would depose a healthy leader.
        """
        timeout_ms = min(
            config.controller_quorum_fetch_timeout_ms, config.controller_quorum_request_timeout_ms
        )
        return cls(
            election_timeout_ms=config.controller_quorum_election_timeout_ms,
            fetch_timeout_ms=config.controller_quorum_fetch_timeout_ms,
            election_backoff_max_ms=config.controller_quorum_election_backoff_max_ms,
            request_timeout_ms=config.controller_quorum_request_timeout_ms,
            retry_backoff_ms=config.controller_quorum_retry_backoff_ms,
            fetch_max_wait_ms=min(_FETCH_MAX_WAIT_MS, timeout_ms // 2),
            auto_join=config.controller_quorum_auto_join_enable,
        )

    @property
    def check_quorum_timeout_ms(self) -> int:
        """The time that a leader leads without fetches of a majority (A12)."""
        return int(self.fetch_timeout_ms * CHECK_QUORUM_FACTOR)

    @property
    def begin_quorum_epoch_interval_ms(self) -> int:
        """The time that the leader waits for a fetch of a voter before it sends BeginQuorumEpoch (A13)."""
        return self.fetch_timeout_ms // 2
