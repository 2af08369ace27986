"""The region server: machines, sockets, disks and an HTTP port, in one process.

A region is a chain of replicas and one *witness*, which keeps the chain's configuration: who its
members are, in which order. Each is a process of its own (`surecast serve`), on a machine of its
own where that matters. A region of one replica may keep its witness inside.

Files
    config.py    what can be set: the sections of the TOML file, and the rules between them
    settings.py  where it comes from: the file, the environment, flags
    nodes.py     from configuration to nodes: their machines, stores and address books
    process.py   the life of `surecast serve`: signals, draining, what is said at its end
    region.py    the nodes of one process, started, drained, stopped
    layout.py    a deployment on one machine, planned: names, ports, files
    cluster.py   ... and run, as real processes
    local.py     a region inside the caller's own event loop
    check.py     --check-config: what this configuration would do, here and now
    status.py    what a node knows, read from its machines without touching them
    alarms.py    what of it is wrong, what that means and what to do
    metrics.py   the same for Prometheus
    files.py     where a stream lies on its disk, for readers that can see it
    http.py      the HTTP port
    operations.py  ... what it takes and answers, as a table
    connections.py, limited_log.py   ... its connections and their bounds, and what it logs
    publishing.py, ndjson.py   ... events that come by it
    logs.py      what a process says on stderr
    openapi.py   ... described for programs
    reference.py docs/configuration.md, made from the configuration classes
"""
