"""A real Spark cluster: a standalone master and workers as processes, from the pip package."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import pyspark

from surecast.pipeline.session import find_java
from tests.ports import free_ports

__all__ = ["SparkCluster"]

READY_S = 90.0


class SparkCluster:
    """`with SparkCluster(folder) as cluster`: `cluster.url` is the address of its master."""

    def __init__(
        self,
        folder: Path,
        workers: int = 2,
        memory: str = "1g",
        python: Path = Path(sys.executable),  # of the executors, unless a program says otherwise
    ) -> None:
        self.folder = folder
        self.workers = workers
        self.memory = memory
        self.python = python
        self.url = f"spark://127.0.0.1:{free_ports(1)[0]}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "SparkCluster":
        try:
            port = self.url.rsplit(":", 1)[1]
            master = ("--host", "127.0.0.1", "--port", port, "--webui-port", "0")
            self._start("master", "org.apache.spark.deploy.master.Master", *master)
            self._until("master", rf"Starting Spark master at {re.escape(self.url)}")
            for number in range(self.workers):
                name = f"worker-{number}"
                self._start(
                    name, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1",
                    "--webui-port", "0", "--cores", "1", "--memory", self.memory,
                    "--work-dir", str(self.folder / name), self.url,
                )  # fmt: skip
            for number in range(self.workers):
                self._until(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self, name: str, main: str, *args: str) -> None:
        home = Path(pyspark.__file__).parent
        env = {
            **os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(find_java()),
            "PYSPARK_PYTHON": str(self.python), "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
        }  # fmt: skip
        with (self.folder / f"{name}.log").open("wb") as log:
            command = [home / "bin" / "spark-class", main, *args]
            self._processes.append(
                subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
            )

    def _until(self, name: str, words: str) -> None:
        """Wait until the log of process `name` contains `words`."""
        deadline = time.monotonic() + READY_S
        while not re.search(words, (self.folder / f"{name}.log").read_text()):
            dead = [process for process in self._processes if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                log = (self.folder / f"{name}.log").read_text()[-2000:]
                raise AssertionError(f"{name} of the Spark cluster did not start:\n{log}")
            time.sleep(0.1)

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
