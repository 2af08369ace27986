"""Measuring Surecast: real processes on loopback, figures with the machine's name beside them.

Every server is built by the builder that `surecast serve` uses, and runs in a process of its own;
so do those that publish and read. A bench is bounded in count and time, counts what it moved, and
says so if anything of it was lost or doubled: a figure that is fast and wrong is no figure.

Files
    report.py      what a bench ends with: rows, problems, the machine and how busy it was
    machine.py     processor, commit, and who used how much of it meanwhile
    roles.py       what workers do: serve a region, publish in a closed loop, read and count
    pool.py        events made beforehand, and what must be left of them
    probe.py       syncs, counted and timed
    deployment.py  regions of real servers, with relays between them where bytes are counted
    broadcast.py   one run of closed-loop drivers, measured, counted, read back
    geo.py         events a second that all of three regions hold
    fanout.py      one publisher, many readers of one region
    latency.py     single events from publish to delivery; client_roles.py has its two ends
    durable.py     events a second that are on disk before they are acknowledged
    catchup.py     what a region that was away is sent, with and without retention
    jetstream.py   its log, beside durable
    nats.py        NATS beside it, where it is installed, spoken to in its raw protocol

Worker processes: surecast_lab/testing/workers.py
"""
