"""The `surecast` command.

entry.py     the console script
interrupts.py  Ctrl-C while a command is being loaded
main.py      the list of verbs; must stay quick to import, `--help` answers in under half a second
up.py        a whole deployment on this machine
serve.py     one node of a region
publish.py, subscribe.py, streams.py   events in, events out, what streams there are
status.py    how a deployment is
log.py       what a data folder holds
sim.py       run a protocol's swarm over many seeds and judge it
replay.py    run recorded or named seeds again and compare
lab.py       list and run the experiments of the papers
demo.py      the main job end to end
options.py   --url, --token and exit codes of the verbs that speak with a region
progress.py  a bar on a terminal, plain lines elsewhere

A verb's file imports only the standard library and typer at its top; numpy, numba, pyarrow and the
rest of surecast are imported inside the verb. Results go to stdout, progress and complaints to
stderr. Exit codes: 0 all well, 1 something was lost, violated or not reproduced, or failed, 2 wrong
usage or configuration, 3 no server could be reached or it refused the token, 130 Ctrl-C.
"""
