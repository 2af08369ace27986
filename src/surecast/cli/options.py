"""What subcommands that connect to a region share: --url, --token, --json, logging, exit codes.

Exit codes: 0 success, 1 a failure or lost events, 2 wrong usage or configuration, 3 no server
could be reached or it refused the token, 130 Ctrl-C.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surecast.core.policies import parse_policy
from surecast.errors import ConfigError, ConnectError, SurecastError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from surecast.columns.rules import Policy

__all__ = [
    "AsJson",
    "Token",
    "Url",
    "console",
    "exit_code",
    "parse_retention",
    "run_async",
    "show_logs",
]

Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="SURECAST_URL", help="A server of the region, or several: host:port,…"
    ),
]
Token = Annotated[
    str,
    typer.Option(
        "--token", envvar="SURECAST_TOKEN", help="The token that the servers require (node.token)."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DEFAULT_URL = "surecast://127.0.0.1:7400"


def exit_code(problem: SurecastError) -> int:
    """The exit code of the process if `problem` ended it."""
    if isinstance(problem, ConnectError):
        return 3
    return 2 if isinstance(problem, ConfigError | UsageError) else 1


def run_async(main: Coroutine[Any, Any, int]) -> None:
    """Run `main` and exit with the code it returns.

    If the program that reads stdout has closed it, such as `head`, the exit code is 0.
    """
    show_logs()
    try:
        code = asyncio.run(main)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout again at exit. On the closed pipe that would print another error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise typer.Exit(code)


def show_logs() -> None:
    """Print the log of the client and of kernel compilation on stderr."""
    handler = logging.StreamHandler()  # stderr
    handler.setFormatter(logging.Formatter("surecast: %(message)s"))
    for name in ("surecast.client", "surecast.kernels"):
        log = logging.getLogger(name)
        log.handlers[:] = [handler]
        log.setLevel(logging.INFO)
        log.propagate = False


def console() -> "Console":
    """stdout for tables: as wide as the terminal, or 160 columns without one."""
    from rich.console import Console

    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else 160)


def parse_retention(text: str | None) -> "Policy | None":
    """The policy that --retain names; None if the option is not given."""
    return None if text is None else parse_policy(text, "--retain")
