"""Registers Surecast in PySpark, which searches packages named `pyspark_*` for a `DefaultSource`.

So `spark.read.format("surecast")` works in every Python environment with `surecast[spark]`.
"""

from surecast.pipeline.source import SurecastSource as DefaultSource

__all__ = ["DefaultSource"]
