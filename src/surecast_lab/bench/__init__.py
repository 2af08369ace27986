"""Benchmarks of Surecast: real processes on loopback, results with a description of the machine.

Every server is created as by `surecast serve` and runs in a separate process; so do publishers and
readers. A bench is bounded in count and time, counts all events, and reports every lost or
duplicated event: a fast result that is wrong does not count.

Files
    report.py      the result of a bench: rows, problems, the machine and its load
    machine.py     processor and commit, and the processor use of all processes during a run
    roles.py       the services of workers: a server, a closed-loop publisher, a counting reader
    pool.py        events created in advance, and the expected events after retention
    probe.py       counts and times syncs
    deployment.py  regions of real servers, with relays between them if bytes are counted
    broadcast.py   one run of closed-loop drivers: measured, counted, read back
    geo.py         events a second that all of three regions hold
    fanout.py      one publisher, many readers of one region
    latency.py     single events from publish to delivery; client_roles.py has the clients
    durable.py     events a second that are on disk before they are acknowledged
    catchup.py     bytes sent to a region after an outage, with and without retention
    jetstream.py   JetStream, for comparison with durable
    nats.py        NATS for comparison, if it is installed, through its raw protocol

Worker processes: surecast_lab/testing/workers.py
"""
