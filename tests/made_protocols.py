"""Protocols made by a test: packages under `surecast.protocols` and rows of the registry."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

import surecast.protocols
from surecast import registry

PACKAGE = "surecast.protocols"


class MadeProtocols:
    """While `monkeypatch` lasts, `folder` is a second place where protocols are found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch = monkeypatch
        self.folder = folder
        places = [*surecast.protocols.__path__, str(folder)]
        monkeypatch.setattr(surecast.protocols, "__path__", places)
        monkeypatch.setattr(registry, "PROTOCOLS", dict(registry.PROTOCOLS))

    def write(self, protocol: str, **files: str) -> ModuleType:
        """Make the protocol of these files, or make it anew; returns its messages module.

        `messages` is one of the files; the package's `__init__.py` is added.
        """
        self.forget(protocol)
        package = self.folder / protocol
        package.mkdir(exist_ok=True)
        for old in package.glob("*.py"):
            old.unlink()
        for name, text in {"__init__": "", **files}.items():
            (package / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        self.monkeypatch.setitem(registry.PROTOCOLS, protocol, registry.Protocol())
        return importlib.import_module(f"{PACKAGE}.{protocol}.messages")

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
