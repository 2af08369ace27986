"""The jobs of test_standalone.py, run in a separate process (a process can have one Spark).

    python -m tests.pipeline.standalone_jobs MASTER URL FOLDER

Prints one JSON object with the results of the jobs.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from surecast.pipeline.jobs.archive import archive, read
from surecast.pipeline.session import spark_session
from surecast.pipeline.sweep import run_tasks


def square_and_origin(number: int) -> dict[str, Any]:
    """Runs in an executor, with the package that was shipped there."""
    import surecast

    return {
        "n": number * number,
        "package": surecast.__file__,
        "python": os.environ.get("PYTHON_OF"),
    }


def main(master: str, url: str, folder: Path) -> dict[str, Any]:
    conf = {
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.archives": f"{folder}/env.tar.gz#env",
        "spark.pyspark.python": "./env/bin/python",
        "spark.sql.shuffle.partitions": "4",
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_DAEMON_JAVA_OPTS", ""),
    }
    spark = spark_session(master, app="standalone", conf=conf)
    try:
        source = spark.read.format("surecast").option("url", url).option("minPartitions", "4")
        rows = source.option("subscribe", "from").load()
        read_back = rows.selectExpr("count(*)", "sum(crc32(value))").first()
        kept = rows.where("seq <= 1000").select("key", "value").sort("key")
        kept.write.format("surecast").options(url=url, stream="to").mode("append").save()
        written = spark.read.format("surecast").options(url=url, subscribe="to").load()
        options = {"url": url, "subscribe": "from", "startingOffsets": "earliest"}
        archived = archive(spark, str(folder / "lake"), options)
        results = run_tasks(spark, square_and_origin, list(range(6)))
        executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()
        return {
            "read": [int(value) for value in read_back or ()],
            "written": written.selectExpr("count(*)").first()[0],  # type: ignore[index]
            "archived": archived,
            "in the archive": read(spark, str(folder / "lake")).count(),
            "tasks": [result for _, result, _ in results],
            "failed": [error for _, _, error in results if error],
            "executors": int(executors) - 1,  # the driver counts as one
        }
    finally:
        spark.stop()


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
