"""Makes the calls of a client fail in a child process that was forked from the client's process.

A forked child has copies of the parent's objects, but not its threads, and it shares the parent's
sockets: bytes written by the child would corrupt the parent's frames. So in the child, right after
the fork, `_on_fork` of every open object is called. From then on, each call of the object raises a
UsageError; otherwise it might wait for a thread that does not exist. The fast paths of publishing
and reading contain no check for a fork: `_on_fork` changes the object so that they are not taken.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from surecast.errors import UsageError

__all__ = ["call_on_fork", "forked"]


class Forkable(Protocol):
    """An object that can be passed to `call_on_fork`."""

    def _on_fork(self) -> None:
        """Called in the child."""


_open: weakref.WeakSet[Forkable] = weakref.WeakSet()  # the objects passed to `call_on_fork`


def call_on_fork(forkable: Forkable) -> None:
    """Have the object's `_on_fork` called in every child that is forked from now on."""
    _open.add(forkable)


def forked() -> UsageError:
    """The error that calls raise in a forked child."""
    return UsageError(
        "this client was connected before the process forked, and its connection belongs to the "
        "parent. Connect again in the child: surecast.connect(...), surecast.sync.connect(...), or "
        "surecast.local(...) with another folder. With multiprocessing, connect in the worker"
    )


def _in_child() -> None:
    for forkable in list(_open):
        forkable._on_fork()
    _open.clear()


os.register_at_fork(after_in_child=_in_child)
