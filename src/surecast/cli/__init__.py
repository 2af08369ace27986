"""The `surecast` command.

main.py      the list of verbs; must stay quick to import, `--help` answers in under half a second
sim.py       run a protocol's swarm over many seeds and judge it
replay.py    run recorded or named seeds again and compare
lab.py       list and run the experiments of the papers
demo.py      the main job end to end
progress.py  a bar on a terminal, plain lines elsewhere

A verb's file imports only the standard library and typer at its top; numpy, numba, pyarrow and the
rest of surecast are imported inside the verb. Results go to stdout, progress and complaints to
stderr. Exit codes: 0 all well, 1 something was violated or not reproduced, 2 wrong usage.
"""
