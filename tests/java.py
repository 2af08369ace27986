"""How the tests start Java: Spark reads the environment."""

import os

from scripts.java_classes import java_options

__all__ = ["set_java_options"]

# Spark in tests does a little of many things and is never warm: code that is compiled once and
# lightly takes a third less of the processor than code that is made fast for later.
# And what it does is small: a page of 32 MB for each task, zeroed and thrown away, is not.
_HEAP = "-Xms768m -Xmn512m -XX:MetaspaceSize=512m -Dspark.buffer.pageSize=1m"
# With one compiler Java has room for 48 MB of code; Spark needs more, and fails oddly without.
_LIGHT = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
_GIVEN = {name: os.environ.get(name) for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS")}


def set_java_options() -> None:
    """What the user has set stays. Call it again once there is a file of Java's classes."""
    light = f"{_LIGHT} {java_options()}"
    ours = {"SPARK_SUBMIT_OPTS": f"{light} {_HEAP}", "SPARK_DAEMON_JAVA_OPTS": light}
    os.environ.update({name: _GIVEN[name] or options for name, options in ours.items()})
