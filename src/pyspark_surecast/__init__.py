"""Spark's way to find Surecast: PySpark scans packages named `pyspark_*` for a `DefaultSource`.

The data source is not written yet, so nothing is registered and Spark ignores this package.
"""

__all__: list[str] = []
