"""Real `surecast` processes for tests; they are always ended."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from surecast.server.layout import lay_out
from tests.ports import free_base as free_base
from tests.ports import free_ports

COMMAND = [sys.executable, "-m", "surecast.cli"]
WAIT_S = 90.0


def clean_env() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("SURECAST_")}


def surecast(*words: str, stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *words],
        input=stdin.decode() if isinstance(stdin, bytes) else stdin,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=clean_env(),
    )


def surecast_here(*words: str, stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
    """Like `surecast`, but in this process, through the function that the console script calls.

    The command gets files of its own as stdin, stdout and stderr.
    """
    from surecast.cli.main import run

    with ExitStack() as stack:
        files = [stack.enter_context(TemporaryFile("w+", encoding="utf-8")) for _ in range(3)]
        files[0].buffer.write(stdin.encode() if isinstance(stdin, str) else stdin)
        files[0].seek(0)
        before = sys.argv, sys.stdin, sys.stdout, sys.stderr
        sys.argv = ["surecast", *words]
        sys.stdin, sys.stdout, sys.stderr = files
        code: Any = 0
        try:
            run()
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.argv, sys.stdin, sys.stdout, sys.stderr = before
        for file in files[1:]:
            file.seek(0)
        return subprocess.CompletedProcess(words, code, files[1].read(), files[2].read())


def wait_for(what: Callable[[], Any], why: str) -> Any:
    """Call `what` until its result is true; returns that. Fails after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {WAIT_S:g} s in vain: {why}")


def get(url: str, token: str = "", **headers: str) -> tuple[int, Any]:
    return ask(url, None, token, **headers)


def ask(
    url: str, body: bytes | None, token: str = "", method: str | None = None, **headers: str
) -> tuple[int, Any]:
    """Status and body, decoded if it is JSON. `method`: by default GET, or POST with a body."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        fields["Authorization"] = f"Bearer {token}"
    try:
        with urlopen(
            Request(url, data=body, headers=fields, method=method), timeout=WAIT_S
        ) as answer:
            status, data = answer.status, answer.read()
            kind = answer.headers.get("content-type", "")
    except HTTPError as refused:
        status, data = refused.code, refused.read()
        kind = refused.headers.get("content-type", "")
    return status, json.loads(data) if "json" in kind else data.decode()


def is_ready(http: str) -> bool:
    try:
        return get(f"http://{http}/readyz")[0] == 200
    except OSError:
        return False


class Process:
    """A running command whose output goes to files; killed at the end if it still runs."""

    def __init__(self, folder: Path, words: Sequence[str], env: dict[str, str] | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.popen = subprocess.Popen(
                [*COMMAND, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**clean_env(), **(env or {})},
            )

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()

    def said(self) -> str:
        return self.out.read_text() + self.err.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(WAIT_S)


def config_text(
    port: int, http: int, data_dir: str = "", *, token: str = "", more: str = ""
) -> str:
    """The configuration of a region of one replica; `more` has further sections."""
    settings = {"node": {"data_dir": data_dir, "token": token}, **tomllib.loads(more)}
    layout = lay_out(Path(), {"east": 1}, [port], [http], settings=settings)
    return layout.text(layout.nodes[0])


class Served(Process):
    """`surecast serve` of a region of one replica, started and ready."""

    def __init__(self, folder: Path, *, durable: bool = False, token: str = "", more: str = ""):
        port, http = free_ports(2)
        self.url, self.http = f"surecast://127.0.0.1:{port}", f"127.0.0.1:{http}"
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "node.toml"
        data = str(folder / "data") if durable else ""
        self.config.write_text(config_text(port, http, data, token=token, more=more))
        self.start()

    def start(self) -> None:
        super().__init__(self.folder, ["serve", str(self.config)])
        wait_for(lambda: is_ready(self.http) or self.popen.poll() is not None, "ready")
        assert self.popen.poll() is None, self.said()
