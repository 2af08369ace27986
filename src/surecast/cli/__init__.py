"""The `surecast` command.

entry.py     the console script
interrupts.py  Ctrl-C while a command is being loaded
main.py      the list of subcommands; must import quickly: `--help` takes under half a second
up.py        a whole deployment on this machine
serve.py     one node of a region
publish.py, subscribe.py, streams.py   publish events, print events, list streams
status.py    the status of a deployment
log.py       the contents of a data folder
sim.py       run a protocol's simulated fault tests over many seeds
replay.py    repeat a seed or a recorded run and compare
lab.py       list and run the experiments of the papers
demo.py      a cluster under faults, with an audit
options.py   --url, --token and exit codes of the subcommands that connect to a region
progress.py  a bar on a terminal, plain lines elsewhere

The file of a subcommand imports only the standard library and typer at its top; numpy, numba,
pyarrow and the rest of surecast are imported inside its functions. Results go to stdout, progress
and error messages to stderr. Exit codes: 0 success; 1 a failure, lost events, a violated guarantee
or a replay that differs; 2 wrong usage or configuration; 3 no server could be reached, or it
refused the token; 130 Ctrl-C.
"""
