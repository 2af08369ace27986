"""Handles Ctrl-C while the modules of a subcommand are being imported.

These imports take up to half a second. An interrupt during an import would be printed as a
traceback; some libraries turn it into another error, or print it and continue. The subcommand has
not begun its work at that time. So the process ends at once, without output and with exit code 130,
as after every interrupt.

Until this module has been imported, an interrupt is not handled in this way. So it must be imported
quickly, and imports almost nothing itself.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # importing this name from `typing` would take long
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = ["INTERRUPTED", "exits_at_once", "loads"]

INTERRUPTED = 130  # exit code: 128 + SIGINT


class exits_at_once:
    """`with exits_at_once():` Ctrl-C inside the block ends the process.

    It has no effect if SIGINT is ignored or has another handler than Python's own, or if this is
    not the main thread.
    """

    def __enter__(self) -> None:
        # Whether the handler is Python's own, so that this class replaces and restores it.
        self.ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self.ours:
            try:
                signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
            except ValueError:  # not the main thread
                self.ours = False

    def __exit__(self, *problem: object) -> None:
        if self.ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def loads(*modules: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a subcommand: imports these modules before it runs, while Ctrl-C ends the process.

    The options have been parsed before that, so `--help` and errors in options do not wait for the
    imports.
    """
    from functools import wraps
    from importlib import import_module

    def decorate(subcommand: Callable[P, R]) -> Callable[P, R]:
        @wraps(subcommand)
        def run(*args: P.args, **options: P.kwargs) -> R:
            with exits_at_once():
                for module in modules:
                    import_module(module)
            return subcommand(*args, **options)

        return run

    return decorate
