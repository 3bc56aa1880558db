"""The main job on real data: flights into a replicated topic, while a broker is killed, out again through a group that
loses a member, and through Spark; each way is checked.

Whatever was started here is ended here, after an error and after Ctrl-C too, in the opposite order. With `keep`,
Ray and the cluster stay and are remembered for `rayka stop`.
"""

import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import msgspec
import pyarrow as pa
from rich.console import Console

import rayka
from rayka.cli.demo_places import demo_cluster, demo_directory, demo_ray
from rayka.cli.narrator import Narrator, ProgressStep
from rayka.cli.output import Count, print_json, print_table
from rayka.errors import UnavailableError
from rayka.options import Transport
from rayka.spark.session import require_spark
from rayka_demo.delays import demo_spark, query
from rayka_demo.flights import (
    CarrierDelay,
    delays_by_carrier,
    flight_records,
    load_flights,
    table_checksum,
)
from rayka_demo.killed_broker import Failure
from rayka_demo.lost_member import GROUP_ID, Group

TOPIC = "flights"
PARTITION_COUNT = 6
_ROWS_A_BATCH = 20_000


class Outcome(msgspec.Struct):
    """What the demo found. `spark_skipped` says why there is no table of Spark's; checksums are hexadecimal.

    `killed` is the broker whose process was killed, the pause the longest time for which a partition was not written.
    `lost_member` is the member of the group that was killed; `moved` says which of its partitions went to which other
    member, `others_kept` whether those had all of theirs throughout. Records out are counted once, and those that came
    again are `records_given_twice`.
    """

    cluster: str
    records_in: int = 0
    records_out: int = 0
    checksum_in: str = ""
    checksum_out: str = ""
    delays_from_csv: list[CarrierDelay] = []
    delays_from_spark: list[CarrierDelay] = []
    spark_skipped: str = ""
    killed: str = ""
    write_pause_seconds: float = 0.0
    lost_member: str = ""
    moved: dict[str, tuple[int, ...]] = {}
    take_over_seconds: float = 0.0
    others_kept: bool = False
    records_given_twice: int = 0
    seconds: dict[str, float] = {}

    @property
    def is_same(self) -> bool:
        """Whether as many records came out as went in, with the same checksum."""
        went_in, came_out = (self.records_in, self.checksum_in), (self.records_out, self.checksum_out)
        return self.records_in > 0 and went_in == came_out

    @property
    def is_table_same(self) -> bool:
        """Whether Spark's table is the one computed from the CSV, or was not asked for."""
        return bool(self.spark_skipped) or self.delays_from_spark == self.delays_from_csv


def run_demo(*, keep: bool, with_spark: bool, as_json: bool, transport: Transport = "auto") -> bool:
    """Runs the demo and tells it on standard output; whether everything came out as it went in."""
    _clean_up_on_sigterm()
    narrator = Narrator(Console(quiet=as_json))
    outcome = Outcome(cluster="rayka" if keep else f"demo-{secrets.token_hex(3)}")
    outcome.spark_skipped = _why_no_spark(with_spark)
    if outcome.spark_skipped and with_spark:
        narrator.say(f"Without Spark: {outcome.spark_skipped}")
    with ExitStack() as stack:
        data_dir = _run(narrator, outcome, stack, transport, keep=keep)
        if keep:
            stack.close()
        else:
            with narrator.step("Stopping all that was started"):
                stack.close()
    if as_json:
        print_json(msgspec.to_builtins(outcome))
    else:
        _report(narrator, outcome)
    if keep:
        _say_how_to_go_on(narrator, data_dir)
    return outcome.is_same and outcome.is_table_same


def _clean_up_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _why_no_spark(with_spark: bool) -> str:
    if not with_spark:
        return "left out (--no-spark)"
    try:
        require_spark()
    except UnavailableError as error:
        return str(error)
    return ""


def _run(narrator: Narrator, outcome: Outcome, stack: ExitStack, transport: Transport, *, keep: bool) -> str:
    with _timed(narrator, outcome, "Reading the flights of 2013") as step:
        flights = load_flights()
        records = flight_records(flights)
        outcome.checksum_in = f"{table_checksum(records):016x}"
        outcome.delays_from_csv = delays_by_carrier(flights)
        step.detail = f"{len(records):,} flights as {records.nbytes / 1e6:,.0f} MB of JSON"
    directory = stack.enter_context(demo_directory(keep=keep))
    with _timed(narrator, outcome, "Connecting to Ray, or starting one") as step:
        step.detail = stack.enter_context(demo_ray(directory, keep=keep))
    _clean_up_on_sigterm()  # again: Ray puts a handler of its own there, which aborts
    with _timed(narrator, outcome, "Starting a cluster") as step:
        cluster = stack.enter_context(demo_cluster(outcome.cluster, directory, transport, keep=keep))
        step.detail = f"{cluster.name!r} in {directory}"
    _publish(narrator, outcome, cluster, records)
    _consume(narrator, outcome, cluster)
    if not outcome.spark_skipped:
        _ask_spark(narrator, outcome, directory)
    return directory


def _publish(narrator: Narrator, outcome: Outcome, cluster: rayka.Cluster, records: pa.Table) -> None:
    """One half, then the end of a broker's process, and the other half."""
    batches = records.to_batches(max_chunksize=_ROWS_A_BATCH)
    half = len(batches) // 2
    with ExitStack() as stack:
        admin = stack.enter_context(rayka.Admin(cluster=cluster))
        # The flights are of 2013: without this they would have expired.
        admin.create_topic(TOPIC, partitions=PARTITION_COUNT, configs={"retention.ms": -1})
        failure = Failure(cluster, admin, TOPIC)
        producer = stack.enter_context(rayka.Producer(cluster=cluster))
        with _timed(narrator, outcome, f"Publishing half of them to topic {TOPIC!r}") as step:
            _send(producer, batches[:half], outcome, step)
        with _timed(narrator, outcome, "Killing a broker and publishing the other half") as step:
            failure.kill()
            _send(producer, batches[half:], outcome, step, failure)
            outcome.killed, outcome.write_pause_seconds = failure.actor_name, round(failure.pause_seconds, 2)
            led = f"{failure.node_name} led {failure.lead_count} of {PARTITION_COUNT} partitions"
            step.detail = f"{led}, longest pause {outcome.write_pause_seconds:.1f} s"
        with _timed(narrator, outcome, f"Waiting until {failure.node_name} is back and in sync"):
            failure.await_in_sync()


def _send(
    producer: rayka.Producer,
    batches: Sequence[pa.RecordBatch],
    outcome: Outcome,
    step: ProgressStep,
    failure: Failure | None = None,
) -> None:
    """Sends batches and counts what is acknowledged."""
    count = 0
    step.expect(sum(len(batch) for batch in batches))
    futures = [producer.send_batch(TOPIC, batch) for batch in batches]
    acknowledged = (sum(each.record_count for each in future.result()) for future in futures)
    for more in failure.timed(acknowledged) if failure else acknowledged:
        count += more
        step.advance(more)
    outcome.records_in += count
    step.detail = step.rate(count, sum(batch.nbytes for batch in batches))


def _consume(narrator: Narrator, outcome: Outcome, cluster: rayka.Cluster) -> None:
    """One half, then the end of a member's process, and the other half."""
    with _timed(narrator, outcome, "Sharing the topic in a group") as step:
        group = Group(cluster, TOPIC)
        group.join()
        step.detail = _who_reads_what(group.assignments)
    half = group.record_count // 2
    with _timed(narrator, outcome, "Reading half of them in the group") as step:
        _read(group, half, step)
    name = group.member_with_most_left()
    with _timed(narrator, outcome, f"Killing {name}, reading on") as step:
        loss = group.lose(name)
        _read(group, group.record_count, step)
        outcome.others_kept = group.leave()
        outcome.lost_member, outcome.moved = loss.member, loss.moved_to
        outcome.take_over_seconds = round(loss.seconds, 2)
        step.detail = _what_moved(outcome)
    outcome.checksum_out = f"{group.checksum:016x}"
    outcome.records_out = group.distinct_count
    outcome.records_given_twice = group.given_count - group.distinct_count


def _read(group: Group, count: int, step: ProgressStep) -> None:
    """Until so many were given, those before included."""
    before = group.distinct_count
    step.expect(count - before)
    for more in group.read(count):
        step.advance(more)
    step.detail = step.rate(group.distinct_count - before)


def _who_reads_what(assignments: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} reads {_and(had)}" for name, had in assignments.items())


def _what_moved(outcome: Outcome) -> str:
    moves = ", ".join(f"{_and(partitions)} to {name}" for name, partitions in outcome.moved.items())
    kept = "the others kept theirs" if outcome.others_kept else "the others gave some away"
    return f"{moves} after {outcome.take_over_seconds:.1f} s, {kept}"


def _and(partitions: tuple[int, ...]) -> str:
    return " and ".join(map(str, partitions))


def _ask_spark(narrator: Narrator, outcome: Outcome, directory: str) -> None:
    with ExitStack() as stack:
        with _timed(narrator, outcome, "Starting Spark on Ray, through RayDP") as step:
            session = stack.enter_context(demo_spark(directory))
            step.detail = f"version {session.version}"
        with _timed(narrator, outcome, "Asking Spark for the delays by carrier") as step:
            outcome.delays_from_spark = query(session, outcome.cluster, TOPIC)
            step.detail = f"{len(outcome.delays_from_spark)} carriers"


@contextmanager
def _timed(narrator: Narrator, outcome: Outcome, doing: str) -> Iterator[ProgressStep]:
    with narrator.step(doing) as step:
        yield step
    outcome.seconds[doing] = round(step.seconds, 2)


# ---- What came of it -----------------------------------------------------------------------------------------------


def _report(narrator: Narrator, outcome: Outcome) -> None:
    if outcome.delays_from_spark:
        rows = [
            (row.carrier, Count(row.flight_count), f"{row.mean_delay_minutes:6.2f}")
            for row in outcome.delays_from_spark
        ]
        narrator.say()
        print_table("Spark's answer", ("carrier", "flights", "mean departure delay (min)"), rows)
    narrator.say()
    narrator.say(f"in:  {outcome.records_in:,} records, checksum {outcome.checksum_in}")
    narrator.say(f"out: {outcome.records_out:,} records, checksum {outcome.checksum_out}")
    if outcome.is_same:
        killed = f"{outcome.killed} and {outcome.lost_member} of the group"
        narrator.say(f"Every record came out as it went in, though {killed} were killed.")
        narrator.say(
            f"Writing paused for {outcome.write_pause_seconds:.1f} s; {outcome.records_given_twice:,} records were "
            "given twice, the member's last, not yet committed."
        )
    else:
        narrator.say("MISMATCH: what came out is not what went in.")
    if outcome.spark_skipped:
        narrator.say(f"Spark: {outcome.spark_skipped}")
    elif outcome.is_table_same:
        narrator.say("Spark's table equals the one computed directly from the CSV.")
    else:
        narrator.say(f"MISMATCH: computed directly from the CSV it is {outcome.delays_from_csv}")


def _say_how_to_go_on(narrator: Narrator, directory: str) -> None:
    narrator.say()
    narrator.say(f"The cluster 'rayka' stays up, its data in {directory}. Now try:")
    narrator.say("  rayka status")
    narrator.say(f"  rayka topic describe {TOPIC}")
    narrator.say(f"  rayka group describe {GROUP_ID}")
    narrator.say(f'''  python -c "import rayka; print(next(iter(rayka.read('{TOPIC}'))))"''')
    narrator.say("and end it with: rayka stop --delete-data")
