"""`python -m surecast.cli` is the `surecast` command."""

from surecast.cli.main import run

run()
