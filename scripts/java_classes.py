"""The path of the file with Spark's Java classes, and the Java options to use it (tests only).

`warm_spark.py` creates the file and explains its purpose.
"""

import sys
from pathlib import Path
from typing import Final

__all__ = ["CLASSES", "SILENT", "java_options"]

CLASSES: Final = Path(sys.prefix) / "share" / "surecast" / "spark-classes.jsa"
SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # no messages if it does not fit


def java_options() -> str:
    """The options for a JVM of Spark; empty if the file does not exist.

    With the path of a missing file, Java would not even use its own default file of classes.
    """
    return f"-XX:SharedArchiveFile={CLASSES} {SILENT}" if CLASSES.exists() else ""
