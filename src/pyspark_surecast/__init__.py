"""Registers Surecast in PySpark, which scans packages named `pyspark_*` for a `DefaultSource`.

So `spark.read.format("surecast")` only needs an installed `surecast[spark]`.
"""

from surecast.pipeline.source import SurecastSource as DefaultSource

__all__ = ["DefaultSource"]
