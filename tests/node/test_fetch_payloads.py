"""In which form a leader gives records: bytes, slices of its files, or ranges that a follower on its machine copies."""

import msgspec
import pytest

from rayka.log.segment import COPIED_RANGE_BYTES_MIN, SLICE_BYTES_MIN
from rayka.ports import FileSlice
from rayka.protocol.wire import encode
from tests.node.fetch_support import append, at, commit, consume, follow, led, values
from tests.node.replica_support import run


@pytest.mark.parametrize("size", [1000, COPIED_RANGE_BYTES_MIN, SLICE_BYTES_MIN])
def test_to_a_follower_on_this_machine_no_more_than_few_records_go_as_bytes(size: int) -> None:
    async def main() -> None:
        broker, handler = await led()
        append(broker, bytes(size))
        local = (broker.replica().directory.directory_id,)
        result = await follow(handler, at(0), local_directory_ids=local)
        sent_bytes = sum(each.size for each in encode(result).buffers)
        if size < COPIED_RANGE_BYTES_MIN:
            assert (values(result), result.file_ranges) == ([bytes(size)], ())
        else:
            assert (sent_bytes, len(result.file_ranges)) == (0, 1)
        assert result.size_bytes > size
        await broker.stop()

    run(main)


@pytest.mark.parametrize("reader", ["follower", "consumer"])
def test_to_a_reader_elsewhere_many_records_go_as_a_slice_and_few_as_bytes(reader: str) -> None:
    async def main() -> None:
        broker, handler = await led()
        append(broker, b"few")
        append(broker, bytes(SLICE_BYTES_MIN))
        await commit(handler, 2)
        read = follow if reader == "follower" else consume
        few = await read(handler, at(0, max_bytes=100))
        many = await read(handler, at(1))
        assert (values(few), few.file_ranges, many.file_ranges) == ([b"few"], (), ())
        (part,) = encode(many).buffers
        assert isinstance(part, FileSlice)
        assert values(msgspec.structs.replace(many, records=part.read())) == [bytes(SLICE_BYTES_MIN)]
        await broker.stop()

    run(main)


def test_a_consumer_gets_a_slice_below_the_high_watermark_only() -> None:  # G1
    async def main() -> None:
        broker, handler = await led()
        append(broker, bytes(SLICE_BYTES_MIN))
        await commit(handler, 1)
        append(broker, bytes(SLICE_BYTES_MIN))
        result = await consume(handler, at(0))
        (part,) = encode(result).buffers
        assert isinstance(part, FileSlice)
        assert (result.next_offset, part.size) == (1, broker.partition().log.segments.active.position_of(1))
        await broker.stop()

    run(main)
