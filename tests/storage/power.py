"""A disk that records what a power cut or a killed process would leave behind at every step.

While it is active, every call that changes a file or a directory is recorded, with two images
before and after it: `killed` has all completed calls, `unplugged` only what a completed sync
covers. An image is a directory as a dict from name to content.
"""

import os
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

Image = dict[str, bytes]
_CHANGES = ("write", "writev", "pwrite", "ftruncate", "fsync", "fdatasync", "rename", "unlink")


class Power:
    """Watches one directory, whose present contents count as synced. `acknowledged` is called at
    each step and returns how many effects have been acknowledged so far."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, acknowledged: Any, seed: int
    ) -> None:
        self.folder = folder
        self.acknowledged = acknowledged
        self.steps: list[tuple[str, int, Image]] = []  # (call, effects acknowledged by then, image)
        self.calls: dict[str, int] = {}
        self._rng = Random(seed)
        self._lock = threading.RLock()
        self._files: dict[int, str] = {}  # open file → name ("." for the directory)
        self._entries: Image = self.killed()  # as of the directory's last sync; content as synced
        self._synced: dict[str, bytes] = dict(self._entries)  # name now → content as synced
        self._real = {name: getattr(os, name) for name in (*_CHANGES, "open", "close")}
        for name in self._real:
            monkeypatch.setattr(os, name, getattr(self, "_" + name))

    def adopt(self) -> None:
        """Count the present contents of the directory as synced."""
        self._synced = self.killed()
        self._entries = dict(self._synced)

    # ------------------------------------------------------------ images

    def killed(self) -> Image:
        return {p.name: p.read_bytes() for p in self.folder.iterdir() if p.name != "lock"}

    def synced(self) -> Image:
        """Only what was synced."""
        with self._lock:
            return dict(self._entries)

    def unplugged(self) -> Image:
        """Only what was synced; in half the cases also part of the unsynced data of each file."""
        image = dict(self._entries)
        if self._rng.random() < 0.5:
            return image
        now = self.killed()
        if "ends" in image and self._rng.random() < 0.5:  # written in place: the new or a torn one
            image["ends"] = now["ends"]
            if self._rng.random() < 0.3 and len(now["ends"]) > 4096:
                image["ends"] = now["ends"][:4096] + image["ends"][4096:].ljust(48, b"?")
        for name, old in image.items():
            new = now.get(name, b"")
            if new.startswith(old):
                some = bytearray(new[: len(old) + self._rng.randint(0, len(new) - len(old))])
                if len(some) > len(old) and self._rng.random() < 0.3:  # a lost sector
                    at = max(len(old), self._rng.randrange(len(some)) // 512 * 512)
                    end = min(at // 512 * 512 + 512, len(some))
                    some[at:end] = bytes(end - at)
                image[name] = bytes(some)
        return image

    def _record(self, call: str) -> None:
        acknowledged = self.acknowledged()
        for image in (self.killed(), self.unplugged()):
            if not self.steps or self.steps[-1][2] != image:
                self.steps.append((call, acknowledged, image))

    def _step(self, call: str, file: str, do: Any) -> Any:
        with self._lock:
            if not file:
                return do()
            self.calls[call] = self.calls.get(call, 0) + 1
            self._record(f"before {call} {file}")
            result = do()
            self._record(f"after {call} {file}")
            return result

    # ------------------------------------------------------------ the calls

    def _name(self, path: Any) -> str:
        path = Path(path)
        if path == self.folder:
            return "."
        return path.name if path.parent == self.folder and path.name != "lock" else ""

    def _open(self, path: Any, flags: int, *rest: Any, **more: Any) -> int:
        name = self._name(path)
        with self._lock:
            new = name not in ("", ".") and not Path(path).exists()
            file: int = self._real["open"](path, flags, *rest, **more)
            if name:
                self._files[file] = name
            if new or (name not in ("", ".") and flags & os.O_TRUNC):
                self._synced[name] = b""
                self._record(f"after open {name}")
            return file

    def _close(self, file: int) -> None:
        with self._lock:
            self._files.pop(file, None)
            self._real["close"](file)

    def _write(self, file: int, data: Any) -> Any:
        return self._step("write", self._of(file), lambda: self._real["write"](file, data))

    def _writev(self, file: int, data: Any) -> Any:
        return self._step("writev", self._of(file), lambda: self._real["writev"](file, data))

    def _pwrite(self, file: int, data: Any, at: int) -> Any:
        return self._step("pwrite", self._of(file), lambda: self._real["pwrite"](file, data, at))

    def _ftruncate(self, file: int, size: int) -> Any:
        return self._step("ftruncate", self._of(file), lambda: self._real["ftruncate"](file, size))

    def _of(self, file: int) -> str:
        return self._files.get(file, "")

    def _fsync(self, file: int) -> Any:
        return self._step("fsync", self._of(file), lambda: self._sync("fsync", file))

    def _fdatasync(self, file: int) -> Any:
        return self._step("fdatasync", self._of(file), lambda: self._sync("fdatasync", file))

    def _sync(self, call: str, file: int) -> None:
        self._real[call](file)
        name = self._of(file)
        if name == ".":
            present = [p.name for p in self.folder.iterdir() if p.name != "lock"]
            self._entries = {n: self._synced.get(n, b"") for n in present}
        else:
            self._synced[name] = (self.folder / name).read_bytes()
            if name in self._entries:
                self._entries[name] = self._synced[name]

    def _rename(self, old: Any, new: Any) -> Any:
        def do() -> None:
            self._real["rename"](old, new)
            self._synced[self._name(new)] = self._synced.pop(self._name(old))

        return self._step("rename", self._name(old), do)

    def _unlink(self, path: Any, **more: Any) -> Any:
        return self._step("unlink", self._name(path), lambda: self._real["unlink"](path, **more))


def put(image: Image, folder: Path) -> Path:
    """Write an image to a new directory."""
    folder.mkdir(parents=True)
    for name, data in image.items():
        (folder / name).write_bytes(data)
    return folder
