"""Options of Java in tests, set in the environment that Spark reads."""

import os

from scripts.java_classes import java_options

__all__ = ["set_java_options"]

# Tests run many different small Spark jobs, so the JVM never warms up: with only the light compiler
# (C1) they take a third less processor time. Small pages, because each task would otherwise
# allocate and zero one of 32 MB.
_HEAP = "-Xms768m -Xmn512m -XX:MetaspaceSize=512m -Dspark.buffer.pageSize=1m"
# With one compiler Java reserves 48 MB for code. Spark needs more; its errors are unclear.
_LIGHT = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
_BY_USER = {name: os.environ.get(name) for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")}


def set_java_options() -> None:
    """Set the options that the user has not set. Call it again once a class archive exists."""
    light = f"{_LIGHT} {java_options()}"
    ours = {"SPARK_SUBMIT_OPTS": f"{light} {_HEAP}", "SPARK_DAEMON_JAVA_OPTS": light}
    os.environ.update({name: _BY_USER[name] or options for name, options in ours.items()})
