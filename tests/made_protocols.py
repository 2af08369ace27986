"""Protocols that a test defines: packages under `surecast.protocols` and rows of the registry."""

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
    """Until `monkeypatch` is undone, protocols are also imported from `folder`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch = monkeypatch
        self.folder = folder
        places = [*surecast.protocols.__path__, str(folder)]
        monkeypatch.setattr(surecast.protocols, "__path__", places)
        monkeypatch.setattr(registry, "PROTOCOLS", dict(registry.PROTOCOLS))

    def write(
        self, protocol: str, *, delivery: Callable[[], Delivery] | None = None, **files: str
    ) -> ModuleType:
        """Write a protocol of these files, replacing any before; returns its messages module.

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
        for module in list(sys.modules):
            if module == name or module.startswith(f"{name}."):
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
    """A delivery with properties that a test chooses; by default it needs no layer of its own."""

    name: str = "made"
    ordered: bool = True
    needs: frozenset[str] = frozenset({"region"})
    verbs: frozenset[str] = VERBS
    keeps_copies: bool = True
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
    """Answers each Follow with the effects that `script` returns for it; sends no messages."""

    inputs: ClassVar[dict[type, str]] = {Follow: "_on_follow", Unfollow: "_on_unfollow"}

    def __init__(self, script: Callable[[Follow], list[Any]], received: list[Any]) -> None:
        super().__init__()
        self.script = script
        self.received = received  # Follow and Unfollow, in order

    def _on_follow(self, inp: Follow) -> None:
        self.received.append(inp)
        self.out += self.script(inp)

    def _on_unfollow(self, inp: Unfollow) -> None:
        self.received.append(inp)
