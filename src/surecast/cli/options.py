"""What the verbs that speak with a region share: --url, --token, what they tell, how they end.

Exit codes: 0 fine, 1 something was lost or failed, 2 wrong usage or configuration, 3 no server
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
    str, typer.Option("--token", envvar="SURECAST_TOKEN", help="What node.token says.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, for programs.")]
DEFAULT_URL = "surecast://127.0.0.1:7400"


def exit_code(problem: SurecastError) -> int:
    """What a program that called us can tell from the end of it."""
    if isinstance(problem, ConnectError):
        return 3
    return 2 if isinstance(problem, ConfigError | UsageError) else 1


def run_async(main: Coroutine[Any, Any, int]) -> None:
    """Run `main` to its end and exit with its code; a reader that went away is no error."""
    show_logs()
    try:
        code = asyncio.run(main)
        sys.stdout.flush()
    except BrokenPipeError:
        # What Python would flush at its end goes nowhere, quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise typer.Exit(code)


def show_logs() -> None:
    """Show on stderr what the client and the loading of kernels log for people to know."""
    handler = logging.StreamHandler()  # stderr
    handler.setFormatter(logging.Formatter("surecast: %(message)s"))
    for name in ("surecast.client", "surecast.kernels"):
        log = logging.getLogger(name)
        log.handlers[:] = [handler]
        log.setLevel(logging.INFO)
        log.propagate = False


def console() -> "Console":
    """stdout for tables: as wide as the terminal, or as they need to be where there is none."""
    from rich.console import Console

    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else 160)


def parse_retention(text: str | None) -> "Policy | None":
    """What --retain says, as a policy."""
    return None if text is None else parse_policy(text, "--retain")
