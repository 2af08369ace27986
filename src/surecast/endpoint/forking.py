"""What a fork leaves of a client: nothing that works.

A child process has copies of the parent's objects, but not its threads, and it shares the sockets
with it: whatever the child wrote would stand in the midst of the parent's frames. So in the child
everything that was open is marked right after the fork, and each call raises instead of waiting for
a thread that is not there. Nothing is checked on the way of an event.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from surecast.errors import UsageError

__all__ = ["forked", "watch"]


class Forkable(Protocol):
    def _on_fork(self) -> None:
        """This is the child now."""


_open: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(one: Forkable) -> None:
    """Have its `_on_fork` called in every child that is forked from now on."""
    _open.add(one)


def forked() -> UsageError:
    return UsageError(
        "this client was connected before the process forked, and its connection belongs to the "
        "parent. Connect again in the child: surecast.connect(...), surecast.sync.connect(...), or "
        "surecast.local(...) with another folder. With multiprocessing, connect in the worker"
    )


def _in_child() -> None:
    for one in list(_open):
        one._on_fork()
    _open.clear()


os.register_at_fork(after_in_child=_in_child)
