"""The benchmarks of `surecast bench`: real processes on one machine, connected over loopback.

Every server is created as by `surecast serve`. Servers, publishers and readers run in separate
processes. Each benchmark has a bounded number of events and a bounded duration. It counts all
events and reports every lost or duplicated one; a result with such errors does not count. Results
contain a description of the machine.

A *closed-loop* publisher (driver) has a fixed number of unacknowledged batches and publishes the
next one when one is acknowledged.

Files
    report.py      the result of a benchmark: figures, problems, the machine and its load
    machine.py     processor and commit, and the processor use of all processes during a run
    roles.py       the code of worker processes: a server, a closed-loop publisher, and a reader
    pool.py        events created in advance, and the expected events after retention
    probe.py       counts and times the fdatasync calls of a process
    deployment.py  regions of real servers, with relays between them if bytes are counted
    broadcast.py   one run of closed-loop drivers: it is measured, and all events are read back
    geo.py         events per second that are replicated to all of three regions
    fanout.py      one publisher, many readers in one region
    latency.py     time of single events from publish to delivery; client_roles.py has the clients
    durable.py     events per second that are on disk before they are acknowledged
    catchup.py     bytes sent to a region after an outage, with and without retention
    jetstream.py   the comparison of `durable` with JetStream
    nats.py        comparisons with NATS, through its raw protocol, if it is installed

Worker processes: surecast_lab/testing/workers.py
"""
