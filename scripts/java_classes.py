"""Where the file of Spark's Java classes is that `warm_spark.py` makes, and how a JVM uses it."""

import sys
from pathlib import Path
from typing import Final

__all__ = ["CLASSES", "SILENT", "java_options"]

CLASSES: Final = Path(sys.prefix) / "share" / "surecast" / "spark-classes.jsa"
SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # about a file that does not fit


def java_options() -> str:
    """Of a JVM of Spark; none while there is no file, or Java would not even map its own."""
    return f"-XX:SharedArchiveFile={CLASSES} {SILENT}" if CLASSES.exists() else ""
