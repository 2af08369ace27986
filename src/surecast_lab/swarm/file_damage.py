"""Damages the files of a real data folder, or replaces the folder by an older copy of itself.

Damage is a flipped bit, or a truncated or deleted file. Fault tests with real processes use this
module (`disk_faults.py`). All choices are drawn from the caller's random generator, so that a run
can be repeated from its seed.
"""

import os
import shutil
from pathlib import Path
from random import Random

__all__ = ["KINDS", "copy_folder", "damage_folder", "restore_folder"]

KINDS = ("flip", "truncate", "delete")
_PREFIXES = ("segment-", "journal-", "manifest", "ends")


def damage_folder(folder: Path, rng: Random, kind: str = "") -> str:
    """Damage one file of a store that is not open; return a description of the damage."""
    files = sorted(p for p in folder.iterdir() if p.name.startswith(_PREFIXES))
    files = [p for p in files if p.stat().st_size]
    if not files:
        return "nothing to damage"
    # Each kind of file is equally likely, independent of the number of its files.
    names = sorted({p.name.partition("-")[0] for p in files})
    name = rng.choice(names)
    path = rng.choice([p for p in files if p.name.partition("-")[0] == name])
    size = path.stat().st_size
    kind = kind or rng.choice(KINDS)
    if kind == "delete":
        path.unlink()
        return f"{path.name} removed"
    at = rng.randrange(size)
    if kind == "truncate":
        os.truncate(path, at)
        return f"{path.name} truncated from {size} to {at} bytes"
    bit = rng.randrange(8)
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    return f"{path.name}: bit {bit} of byte {at} of {size} flipped"


def copy_folder(folder: Path, to: Path) -> None:
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(folder, to)


def restore_folder(folder: Path, copy: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
