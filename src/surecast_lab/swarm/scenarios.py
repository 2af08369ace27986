"""Finds the scenarios of the swarm (see `trial`) by name, from the files of this folder.

A file `<protocol>.py` or `<protocol>_<variant>.py` is a scenario, named `<protocol>` or
`<protocol>-<variant>`. It defines SCENARIO: a class or function that returns a `trial.Scenario` and
takes no arguments. `names` lists the names without importing the files. Run as a program, this
module prints the names.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

import surecast.protocols
import surecast_lab.swarm
from surecast.errors import UsageError

if TYPE_CHECKING:
    from surecast_lab.swarm.trial import Scenario

__all__ = ["load", "names"]


def names() -> list[str]:
    """The names of all scenarios, sorted."""
    protocols = {module.name for module in iter_modules(surecast.protocols.__path__)}
    files = (module.name for module in iter_modules(surecast_lab.swarm.__path__))
    return sorted(name.replace("_", "-") for name in files if _is_of(name, protocols))


def _is_of(file: str, protocols: set[str]) -> bool:
    return any(file == protocol or file.startswith(f"{protocol}_") for protocol in protocols)


def load(name: str) -> "Callable[[], Scenario[Any]]":
    """The SCENARIO of this name, to be called once per seed; imports everything it needs."""
    if name not in names():
        raise UsageError(f"no swarm {name!r}; there are: {', '.join(names())}")
    module = import_module(f"surecast_lab.swarm.{name.replace('-', '_')}")
    made: Callable[[], Scenario[Any]] = module.SCENARIO
    return made


if __name__ == "__main__":
    print(*names())
