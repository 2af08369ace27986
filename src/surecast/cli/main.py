"""Registers the subcommands of `surecast`, and runs the one that the command line names."""

import sys
from typing import Annotated

import typer

from surecast import SurecastError, __version__
from surecast.cli.bench import bench
from surecast.cli.change import change
from surecast.cli.delete import delete
from surecast.cli.demo import demo
from surecast.cli.interrupts import INTERRUPTED
from surecast.cli.lab import lab
from surecast.cli.log import log
from surecast.cli.options import exit_code
from surecast.cli.pipeline import pipeline
from surecast.cli.publish import publish
from surecast.cli.replay import replay
from surecast.cli.serve import serve
from surecast.cli.sim import sim
from surecast.cli.status import status
from surecast.cli.streams import streams
from surecast.cli.subscribe import subscribe
from surecast.cli.subscriptions import subscriptions
from surecast.cli.up import up
from surecast.cli.where import where

app = typer.Typer(
    name="surecast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Replicated event streams: servers, publishers, readers, a simulator and experiments.",
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
    """Replicated event streams: servers, publishers, readers, a simulator and experiments."""


app.command()(up)
app.command()(publish)
app.command()(subscribe)
app.command()(streams)
app.command()(change)
app.command()(delete)
app.add_typer(subscriptions, name="subscriptions")
app.command()(status)
app.command()(serve)
app.command()(demo)
app.command()(sim)
app.command()(replay)
app.add_typer(bench, name="bench")
app.add_typer(log, name="log")
app.add_typer(lab, name="lab")
app.add_typer(pipeline, name="pipeline")
app.add_typer(where, name="where")


def run() -> None:
    """Run the command line; a SurecastError is printed as one line and sets the exit code."""
    try:
        app()
    except SurecastError as error:
        print(f"surecast: {error}", file=sys.stderr)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    run()
