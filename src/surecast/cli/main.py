"""The verbs of `surecast`, registered here; each is a file beside this one."""

import sys
from typing import Annotated

import typer

from surecast import SurecastError, __version__
from surecast.cli.demo import demo
from surecast.cli.lab import lab
from surecast.cli.replay import replay
from surecast.cli.sim import sim

app = typer.Typer(
    name="surecast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Replicated event streams, their simulator and their experiments.",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"surecast {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Replicated event streams, their simulator and their experiments."""


app.command()(demo)
app.command()(sim)
app.command()(replay)
app.add_typer(lab, name="lab")


def run() -> None:
    """The console script: our own errors are one line and exit code 2, not a traceback."""
    try:
        app()
    except SurecastError as error:
        print(f"surecast: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
