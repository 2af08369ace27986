"""What the verbs that speak with a region share: --url, --token, and how they end.

Exit codes: 0 fine, 1 something was lost or failed, 2 wrong usage or configuration, 3 no server
could be reached, 130 Ctrl-C.
"""

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surecast.errors import (
    Closed,
    ConnectError,
    Fenced,
    JobFailed,
    PublishError,
    QueueFull,
    StorageError,
    SurecastError,
)

if TYPE_CHECKING:
    from rich.console import Console

    from surecast.columns.rules import Policy

__all__ = ["AsJson", "Token", "Url", "console", "exit_code", "parse_retention", "run_async"]

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

RETENTIONS = "keep-all, latest-per-key, keep-last:N or keep-for:1h"


def exit_code(problem: SurecastError) -> int:
    """What a program that called us can tell from the end of it."""
    if isinstance(problem, ConnectError):
        return 3
    failed = (Closed, Fenced, JobFailed, PublishError, QueueFull, StorageError)
    return 1 if isinstance(problem, failed) else 2


def run_async(main: Coroutine[Any, Any, int]) -> None:
    """Run `main` to its end and exit with its code; a reader that went away is no error."""
    try:
        code = asyncio.run(main)
        sys.stdout.flush()
    except BrokenPipeError:
        # What Python would flush at its end goes nowhere, quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    raise typer.Exit(code)


def console() -> "Console":
    """stdout for tables: as wide as the terminal, or as they need to be where there is none."""
    from rich.console import Console

    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else 160)


def parse_retention(text: str | None) -> "Policy | None":
    """ "keep-last:100" → keep_last(100)."""
    if text is None:
        return None
    from datetime import timedelta

    from surecast.client import rules
    from surecast.core.config import parse_ns
    from surecast.errors import ConfigError, UsageError

    what, _, amount = text.partition(":")
    try:
        if what == "keep-all" and not amount:
            return rules.keep_all()
        if what == "latest-per-key" and not amount:
            return rules.latest_per_key()
        if what == "keep-last":
            return rules.keep_last(int(amount))
        if what == "keep-for":
            return rules.keep_for(timedelta(microseconds=parse_ns(amount) / 1000))
    except (ValueError, OverflowError, ConfigError, UsageError):
        pass
    raise typer.BadParameter(f"{text!r} is not {RETENTIONS}", param_hint="--retain")
