"""A Spark Declarative Pipeline that turns one stream into tables without obsolete events.

A position of a stream is *void* if its event is obsolete. The tables:

`events`   all events, each appended exactly once
`voids`    the ranges of positions that are void when the pipeline runs
`live`     the events whose positions are not void; when an event becomes obsolete, the next run
           removes its row
`latest`   the last live event of each key (latest.sql)
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
OPTIONS = {
    "url": spark.conf.get("surecast.url"),
    "subscribe": spark.conf.get("surecast.stream"),
}


@dp.table
def events() -> DataFrame:
    rows = spark.readStream.format("surecast").options(**OPTIONS)
    rows = rows.option("startingOffsets", "earliest").load()
    return rows.select("seq", "key", "value", "timestamp")


@dp.materialized_view
def voids() -> DataFrame:
    rows = spark.read.format("surecast").options(**OPTIONS).option("includeVoids", "true").load()
    first = f.col("seq") - f.col("range") + 1
    return rows.where("kind = 'void'").select(first.alias("first"), f.col("seq").alias("last"))


@dp.materialized_view
def live() -> DataFrame:
    is_void = f.col("seq").between(f.col("first"), f.col("last"))
    return spark.read.table("events").join(
        f.broadcast(spark.read.table("voids")), is_void, "left_anti"
    )
