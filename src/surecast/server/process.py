"""The process of `surecast serve`: starts the server, logs readiness and alarms, handles signals.

SIGTERM and SIGINT drain the server: it answers publishes in progress, closes its sessions, writes
queued data to the disk, and ends with exit code 0. A second signal ends the process at once;
acknowledged events are on disk in any case. If a node cannot continue, because its disk failed or
its state machine raised an exception (a bug), the process ends with exit code 1 and a message that
says what happened and what to do.
"""

import asyncio
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from surecast.errors import ConfigError, StorageError
from surecast.runtime.addresses import show_address
from surecast.runtime.run import run as run_loop
from surecast.server import logs
from surecast.server.alarms import Alarm, alarms
from surecast.server.config import ServerConfig
from surecast.server.http import HttpPort
from surecast.server.region import RegionServer
from surecast.server.status import not_ready

__all__ = ["prepare", "serve"]

log = logging.getLogger("surecast.server")

LOOK_S = 0.2  # interval between checks of the alarms
# An alarm is logged when this number of checks in succession has found it, because many alarms
# during a start are over after a moment.
CHECKS_BEFORE_LOG = 3


def prepare(config: ServerConfig) -> None:
    """Set up the log and load the compiled kernels. Call it before the event loop runs: if the
    kernels have to be compiled, that takes some seconds, in which the loop could not react to
    signals."""
    logs.set_up(config.log)
    if not config.is_witness:
        from surecast.columns import kernels

        kernels.warm()


def serve(config: ServerConfig) -> int:
    """Run until a signal or a failure; returns the exit code. Call `prepare` first."""
    code = 1

    async def run() -> None:
        nonlocal code
        code = await _ServerProcess(config).run()

    run_loop(run())
    return code


class AlarmLog:
    """Decides what is logged: an alarm once several checks in a row have found it, and the end of
    its code once no alarm with this code is left."""

    def __init__(self) -> None:
        # Alarm, as (code, text up to the first comma) → the number of checks that have found it.
        # The rest of the text may contain a time that changes.
        self._found: dict[tuple[str, str], int] = {}
        self._logged: set[str] = set()  # codes

    def check(self, alarms: Sequence[Alarm]) -> tuple[list[str], list[Alarm]]:
        """Returns the codes that are over, and the alarms that are to be logged."""
        now = {(alarm.code, alarm.what.split(",")[0]): alarm for alarm in alarms}
        self._found = {key: self._found.get(key, 0) + 1 for key in now}
        over = sorted(self._logged - {code for code, _ in now})
        self._logged.difference_update(over)
        # `_log_start` has already logged "in-memory".
        lasting = [
            alarm
            for key, alarm in now.items()
            if self._found[key] == CHECKS_BEFORE_LOG and alarm.code != "in-memory"
        ]
        self._logged.update(alarm.code for alarm in lasting)
        return over, lasting


class _ServerProcess:
    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.server = RegionServer(config)
        self.http = HttpPort(self.server) if config.node.http else None
        self.stop_requested = asyncio.Event()
        self.signals = 0
        self.ready = False
        self.alarm_log = AlarmLog()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            await self.server.start()
            if self.http is not None:
                await self.http.start()
        except (ConfigError, StorageError) as problem:
            await self.server.stop()
            return self._cannot_start(problem)
        self._log_start()
        watch = asyncio.create_task(self._watch())
        stop = asyncio.create_task(self.stop_requested.wait())
        failures = [watch, *(node.failed for node in self.server.nodes)]
        ends: list[asyncio.Future[Any]] = [stop, *failures]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        failed = [end.exception() for end in failures if end.done()]
        for task in (watch, stop):
            task.cancel()
        await self._end(failed[0] if failed else None)
        return 1 if failed else 0

    async def _end(self, problem: BaseException | None) -> None:
        if problem is None:
            log.info("%s: draining; a second signal ends it at once", self.config.name)
            self.server.draining = True  # new HTTP publishes are refused
            if self.http is not None:
                # Before `server.drain()`, after which the replica refuses publishes: those that
                # HTTP clients have already sent must be answered first.
                await self.http.publishing.close()
            await self.server.drain()
        else:
            await self.server.stop()
        if self.http is not None:
            await self.http.stop()
        if problem is None:
            log.info("%s: stopped", self.config.name)
        else:
            print(_paragraph(self.config, problem), file=sys.stderr, flush=True)

    def _on_signal(self, number: int) -> None:
        self.signals += 1
        if self.signals > 1:
            os._exit(128 + number)
        self.stop_requested.set()

    def _cannot_start(self, problem: Exception) -> int:
        print(f"surecast: {self.config.name} cannot start: {problem}", file=sys.stderr, flush=True)
        return 2 if isinstance(problem, ConfigError) else 1

    # ------------------------------------------------------------ logging

    def _log_start(self) -> None:
        config = self.config
        address = self.server.nodes[0].address
        assert address is not None
        http = "no HTTP"
        if self.http is not None and self.http.address is not None:
            http = f"http://{show_address(self.http.address)}"
        log.info(
            "%s, %s of region %s: surecast://%s, %s, pid %d",
            config.name, config.node.role, config.node.region, show_address(address), http,
            os.getpid(),
        )  # fmt: skip
        if not config.node.data_dir:
            log.warning("%s KEEPS NOTHING ON DISK: node.data_dir is empty", config.name)

    async def _watch(self) -> None:
        """Log when the process becomes ready, and alarms that last."""
        while True:
            if not self.ready and not not_ready(self.server):
                self.ready = True
                log.info("%s: ready", self.config.name)
            over, lasting = self.alarm_log.check(alarms(self.server))
            for code in over:
                log.info("%s: this alarm is over: %s", self.config.name, code)
            for alarm in lasting:
                text = f"{alarm.code}: {alarm.what}. {alarm.means} {alarm.todo}"
                log.warning("%s: %s", self.config.name, text)
            await asyncio.sleep(LOOK_S)


def _paragraph(config: ServerConfig, problem: BaseException) -> str:
    """The final message of a failed process: what happened, where, and what to do."""
    folder = os.path.abspath(config.node.data_dir) if config.node.data_dir else ""
    if isinstance(problem, StorageError):
        todo = (
            f"Its data folder is {folder}. Run `surecast log verify` on it: that lists the damage. "
            "If the other replicas of the region are intact, move the folder away and start again: "
            "this replica is then filled from them."
        )
    else:
        last = traceback.extract_tb(problem.__traceback__)[-1:]
        where = f"{os.path.basename(last[0].filename)}:{last[0].lineno}" if last else "somewhere"
        kept = (
            f"Acknowledged events are safe in {folder}."
            if folder
            else "This process kept nothing on disk: its events are lost, unless another replica "
            "or region has them."
        )
        todo = (
            f"This is a bug of Surecast, at {where}; the log above has the details. {kept} Start "
            "the process again; if it stops at the same place, set node.record to a folder and "
            "report the recording."
        )
    what = f"{type(problem).__name__}: {problem}"
    return f"surecast: {config.name} had to stop. {what}\n{todo}"
