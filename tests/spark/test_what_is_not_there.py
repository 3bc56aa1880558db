"""Writes and streams of the data source, which are not there yet: each says so in one error, whatever else is wrong."""

import pytest
from pyspark.sql.datasource import DataSource

from rayka.errors import ConfigError
from rayka.spark.source import RaykaDataSource

OFFERED = {"name", "schema", "reader"}
ARGUMENTS = {"writer": 2, "streamWriter": 2}
WRITES, STREAMS = "cannot be written to yet", "cannot be read as a stream yet"


@pytest.mark.parametrize(
    "options", [{}, {"topic": "t"}, {"subscribe": "t"}, {"checkpointLocation": "/c"}, {"zzz": "1"}], ids=str
)
@pytest.mark.parametrize("method", sorted(each for each in vars(DataSource) if not each.startswith("_")))
def test_what_the_format_does_not_offer_is_said_before_its_options_are_read(method, options):
    if method in OFFERED:
        return
    source = RaykaDataSource(options)
    with pytest.raises(ConfigError, match=WRITES if "rite" in method else STREAMS):
        getattr(source, method)(*[None] * ARGUMENTS.get(method, 1))


@pytest.mark.spark
def test_spark_passes_the_one_error_on(spark, tmp_path):
    rows = spark.range(3).selectExpr("cast(id as string) value")
    rate = spark.readStream.format("rate").load().selectExpr("cast(value as string) value")
    topic = spark.readStream.format("rayka").option("subscribe", "t").load()
    place = {"checkpointLocation": str(tmp_path / "c")}
    for attempt, says in (
        (lambda: rows.write.format("rayka").mode("append").option("topic", "t").save(), WRITES),
        (lambda: rate.writeStream.format("rayka").options(**place).start().awaitTermination(60), WRITES),
        (lambda: topic.writeStream.format("noop").options(**place).start().processAllAvailable(), STREAMS),
    ):
        with pytest.raises(Exception, match=f"ConfigError: .*{says}") as raised:
            attempt()
        assert "is not implemented" not in str(raised.value)
