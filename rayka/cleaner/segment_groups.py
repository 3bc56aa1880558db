"""Which segments become one (F22). Kafka: `Cleaner.groupSegmentsBySize`."""

from collections.abc import Sequence

from rayka.config import TopicConfig
from rayka.log.segment import MAX_RELATIVE_OFFSET, Segment


def grouped(segments: Sequence[Segment], config: TopicConfig) -> list[list[Segment]]:
    """Segments in their order, so many together as fit one by bytes, by the size of indexes and by offsets."""
    groups: list[list[Segment]] = []
    size_bytes = index_bytes = 0
    for segment in segments:
        size_bytes += segment.size_bytes
        index_bytes += segment.indexes.size_bytes
        fits = (
            groups
            and size_bytes <= config.segment_bytes
            and index_bytes <= config.segment_index_bytes
            and segment.next_offset - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET
        )
        if not fits:
            groups.append([])
            size_bytes, index_bytes = segment.size_bytes, segment.indexes.size_bytes
        groups[-1].append(segment)
    return groups
