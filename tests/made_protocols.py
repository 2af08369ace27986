"""Protocols made by a test: packages under `surecast.protocols` and rows of the registry."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

import surecast.protocols
from surecast import registry
from surecast.core.compose import Layer
from surecast.core.endpoint import VERBS, Delivery, Follow, Place, Unfollow
from surecast.core.machine import HandlerMachine, NodeContext
from surecast.core.roles import Role
from surecast.core.streams import StreamSpec
from surecast.errors import UsageError

PACKAGE = "surecast.protocols"


class MadeProtocols:
    """While `monkeypatch` lasts, `folder` is a second place where protocols are found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch = monkeypatch
        self.folder = folder
        places = [*surecast.protocols.__path__, str(folder)]
        monkeypatch.setattr(surecast.protocols, "__path__", places)
        monkeypatch.setattr(registry, "PROTOCOLS", dict(registry.PROTOCOLS))

    def write(
        self, protocol: str, *, delivery: Callable[[], Delivery] | None = None, **files: str
    ) -> ModuleType:
        """Make the protocol of these files, or make it anew; returns its messages module.

        The package's `__init__.py` and an empty `messages.py` are added. A file `role` has a class
        `Role`, which becomes the protocol's role.
        """
        self.forget(protocol)
        package = self.folder / protocol
        package.mkdir(exist_ok=True)
        for old in package.glob("*.py"):
            old.unlink()
        for name, text in {"__init__": "", "messages": "", **files}.items():
            (package / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        role = self._role(protocol) if "role" in files else None
        row = registry.Protocol(delivery=delivery, role=role)
        self.monkeypatch.setitem(registry.PROTOCOLS, protocol, row)
        return importlib.import_module(f"{PACKAGE}.{protocol}.messages")

    def _role(self, protocol: str) -> Callable[[], Role]:
        def load() -> Role:
            role: Role = importlib.import_module(f"{PACKAGE}.{protocol}.role").Role()
            return role

        return load

    def forget(self, protocol: str) -> None:
        """Unload the protocol's modules."""
        name = f"{PACKAGE}.{protocol}"
        for module in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[module]
        if hasattr(surecast.protocols, protocol):
            delattr(surecast.protocols, protocol)


@contextmanager
def made_protocols(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[MadeProtocols]:
    made = MadeProtocols(monkeypatch, folder)
    try:
        yield made
    finally:
        for path in folder.iterdir():
            made.forget(path.name)


@dataclass
class MadeDelivery:
    """A delivery that is what a test says; by default like one of the stream service alone."""

    name: str = "made"
    ordered: bool = True
    needs: frozenset[str] = frozenset({"region"})
    verbs: frozenset[str] = VERBS
    acks: tuple[str, ...] = ("local",)
    refuses: str = ""  # what `check` raises
    make_publisher: Callable[[], Layer | None] = lambda: None
    make_reader: Callable[[], Layer | None] = lambda: None

    def check(self, _spec: StreamSpec) -> None:
        if self.refuses:
            raise UsageError(self.refuses)

    def publisher(self, _ctx: NodeContext, _place: Place) -> Layer | None:
        return self.make_publisher()

    def reader(self, _ctx: NodeContext, _place: Place) -> Layer | None:
        return self.make_reader()


class ScriptedReader(HandlerMachine):
    """Answers each Follow with the effects that `script` gives for it, and speaks with nobody."""

    inputs: ClassVar[dict[type, str]] = {Follow: "_on_follow", Unfollow: "_on_unfollow"}

    def __init__(self, script: Callable[[Follow], list[Any]], heard: list[Any]) -> None:
        super().__init__()
        self.script = script
        self.heard = heard  # Follow and Unfollow, as they came

    def _on_follow(self, inp: Follow) -> None:
        self.heard.append(inp)
        self.out += self.script(inp)

    def _on_unfollow(self, inp: Unfollow) -> None:
        self.heard.append(inp)
