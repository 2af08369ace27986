"""Spark's way to find Surecast: PySpark scans packages named `pyspark_*` for a `DefaultSource`.

So `spark.read.format("surecast")` needs nothing but an installed `surecast[spark]`.
"""

from surecast.pipeline.source import SurecastSource as DefaultSource

__all__ = ["DefaultSource"]
