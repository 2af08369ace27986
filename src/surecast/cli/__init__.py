"""The `surecast` command: one file for each subcommand, and some shared files.

Subcommands
    up.py             runs a whole deployment on this machine
    serve.py          runs one node of a region
    status.py         shows the status of a deployment
    publish.py, subscribe.py           publish events, print events
    streams.py, delete.py              list streams, delete a stream
    subscriptions.py  lists, resets and deletes named subscriptions
    log.py            shows and checks the contents of a data folder
    bench.py          measures this machine
    demo.py           runs a cluster under faults, then audits it
    pipeline.py       runs jobs on Spark
    sim.py            runs a protocol's simulated fault tests over many seeds
    replay.py         repeats a seed or a recorded run and compares
    lab.py            lists and runs the experiments of the papers
Shared
    entry.py          the console script
    main.py           the list of subcommands
    interrupts.py     handles Ctrl-C while a command is being loaded
    options.py        --url, --token and exit codes of subcommands that connect to a region
    spark.py          --master and --conf of subcommands that run on Spark
    progress.py       shows progress: a bar on a terminal, plain lines elsewhere
    extras.py         checks for optional dependencies

`surecast --help` has to answer in under half a second. So the file of a subcommand imports only the
standard library, typer and small modules at its top; numpy, numba, pyarrow and most of surecast
are imported inside its functions. Results go to stdout, progress and error messages to stderr.

Exit codes: 0 success; 1 a failure, lost events, a violated guarantee or a replay that differs; 2
wrong usage or configuration; 3 no server could be reached, or it refused the token; 130 Ctrl-C. On
Ctrl-C `serve` and `up` stop cleanly and exit with 0, unless they are still starting.
"""
