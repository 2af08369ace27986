"""Mutants that change the text of one function, for checks that must fail with them.

A bound is often one comparison inside a longer function. `Edit` changes that text and replaces the
original function by the changed one. A module lists its checks and edits in a table named CHECKS;
`tests/test_mutations.py` lists the checks that must exist.
"""

import __future__

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import pytest

__all__ = ["Check", "Edit", "Row", "each_check", "must_fail"]

Check = Callable[[], None]


class Edit(NamedTuple):
    """The function `where` (module:function or module:Class.method) with `old` replaced."""

    where: str
    old: str
    new: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        module, _, path = self.where.partition(":")
        *owners, name = path.split(".")
        owner: Any = import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        original = vars(owner)[name]
        setattr(owner, name, self._edited(original, owner, name))
        try:
            yield
        finally:
            setattr(owner, name, original)

    def _edited(self, original: Any, owner: Any, name: str) -> Any:
        function = inspect.unwrap(getattr(original, "__func__", original))
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            count = source.count(self.old)
            raise LookupError(f"{self.where} has {self.old!r} {count} times: change this edit")
        body = textwrap.indent(source.replace(self.old, self.new), "    ")
        # A method that calls super() finds its class by the name of the parameter.
        text = f"def make(__class__):\n{body}\n    return {name}\n"
        flags = function.__code__.co_flags & __future__.annotations.compiler_flag
        code = compile(text, f"<edit of {self.where}>", "exec", flags, dont_inherit=True)
        made: dict[str, Any] = {}
        exec(code, function.__globals__, made)
        return made["make"](owner)


Row = tuple[Check, Edit]


def each_check(rows: list[Row]) -> Any:
    """Run a test once for each (check, edit) of a table."""
    return pytest.mark.parametrize(("check", "edit"), rows, ids=[row[0].__name__ for row in rows])


def must_fail(check: Check, edit: Edit) -> None:
    """With the edit, the check must fail: an assertion fails or an expected error is missing."""
    with edit.applied(), pytest.raises((AssertionError, pytest.fail.Exception)):
        check()
