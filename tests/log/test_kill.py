"""`kill -9` of a process that appends to the real disk: the page cache keeps every append that returned (design §4)."""

import shutil
import signal
import subprocess
import sys
import tempfile

from rayka.config.topic_config import TopicConfig
from rayka.log.local_disk import LocalDisk
from tests.log.support import opened_log, read_batches

CONFIG = TopicConfig(segment_bytes=200_000)
APPENDER = """
import sys
from rayka.config.topic_config import TopicConfig
from rayka.log.local_disk import LocalDisk
from rayka.log.log_opening import ShutdownState, opening_log
from rayka.log.log_files import run_to_end
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import RecordBatch
config, left = TopicConfig(segment_bytes=200_000), ShutdownState(recovery_point=0)
log = run_to_end(opening_log(LocalDisk(), sys.argv[1], config, left, now_ms=0, new_files={}))
batch = RecordBatch(encode_batch([b"x" * 1000] * 20, timestamps_ms=1))
while True:
    print(log.append_as_leader([batch], 0, now_ms=0).last_offset, flush=True)
"""


def test_a_killed_process_loses_no_append_that_returned() -> None:
    root = tempfile.mkdtemp()
    directory = f"{root}/orders-0"
    appender = subprocess.Popen(
        [sys.executable, "-c", APPENDER, directory], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert appender.stdout is not None
    acknowledged = [int(appender.stdout.readline()) for _ in range(200)]
    appender.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in appender.stdout.read().split("\n")[:-1]]
    appender.wait()
    appender.stdout.close()
    disk = LocalDisk()
    log = opened_log(disk, directory, CONFIG)
    assert log.log_end_offset > acknowledged[-1]
    assert [each.last_offset for each in read_batches(log, max_bytes=1 << 20)][
        : len(acknowledged)
    ] == acknowledged
    disk.close()
    shutil.rmtree(root)
