"""`surecast serve CONFIG`: runs one node of a region until it is stopped."""

import json
from pathlib import Path
from typing import Annotated

import typer

from surecast.cli.interrupts import exits_at_once, loads


@loads("surecast.server.settings")
def serve(
    config: Annotated[
        Path, typer.Argument(help="A TOML file; docs/configuration.md lists every key.")
    ],
    check_config: Annotated[
        bool,
        typer.Option("--check-config", help="Check the configuration, print a summary, and exit."),
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="SECTION.KEY=VALUE: overrides the value in the file.", metavar="KEY=VALUE"
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --check-config: one JSON object on stdout.")
    ] = False,
) -> None:
    """Run one node of a region: a replica, or its witness.

    Environment variables can also set keys: SURECAST_NODE__HTTP=127.0.0.1:7480 sets node.http.
    On SIGTERM or Ctrl-C it answers publishes in progress, writes all data to the disk, and exits
    with 0. Other exit codes: 1 after a failure, 2 if the configuration is wrong, 130 on Ctrl-C
    while the program is being loaded.
    """
    from surecast.server.settings import load_config

    loaded = load_config(config, set_ or ())
    if not check_config:
        with exits_at_once():
            from surecast.server.process import prepare
            from surecast.server.process import serve as run

            prepare(loaded)
        raise typer.Exit(run(loaded))
    from surecast.server.check import check, summary

    found = check(loaded)
    if as_json:
        facts = [{"what": what, "is": text} for what, text in summary(loaded)]
        ok = not found.problems
        print(json.dumps({"ok": ok, **found._asdict(), "summary": facts}))
    else:
        rows = summary(loaded)
        width = max(len(what) for what, _ in rows)
        print("\n".join(f"{what:<{width}}  {text}" for what, text in rows))
        lines = [f"WARNING: {one}" for one in found.warnings]
        lines += [f"PROBLEM: {one}" for one in found.problems] or [f"{config} is fine"]
        print("\n".join(lines))
    raise typer.Exit(2 if found.problems else 0)
