"""Which segments become one (F22). Kafka: `Cleaner.groupSegmentsBySize`.

Left out there: a bound of their number. All of a group are looked at, and their files removed, in one turn of the event
loop; of very many small ones several groups are made, and the next cleaning joins those.
"""

from collections.abc import Iterator, Sequence

from rayka.config.topic_config import TopicConfig
from rayka.log.segment import MAX_RELATIVE_OFFSET, Segment

SEGMENTS_MAX = 25


def grouped(segments: Sequence[Segment], config: TopicConfig) -> Iterator[list[Segment]]:
    """Segments in their order, so many together as fit one by bytes, by the size of indexes and by offsets, and 25 at
    most. Each group is looked for when it is asked for.
    """
    group: list[Segment] = []
    size_bytes = index_bytes = 0
    for segment in segments:
        own_index_bytes = segment.indexes.size_bytes
        size_bytes += segment.size_bytes
        index_bytes += own_index_bytes
        fits = (
            len(group) < SEGMENTS_MAX
            and size_bytes <= config.segment_bytes
            and index_bytes <= config.segment_index_bytes
            and segment.next_offset - (group or [segment])[0].base_offset <= MAX_RELATIVE_OFFSET
        )
        if group and not fits:
            yield group
            group, size_bytes, index_bytes = [], segment.size_bytes, own_index_bytes
        group.append(segment)
    if group:
        yield group
