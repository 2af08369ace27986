"""`python -m surecast.cli` is the `surecast` command."""

from surecast.cli.entry import run

run()
