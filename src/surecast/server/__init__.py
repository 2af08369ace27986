"""The region server: machines, sockets, disks and an HTTP port, in one process.

A region is a chain of replicas and one *witness*, which keeps the chain's configuration: its
members and their order. Each is a process of its own (`surecast serve`), in production on a machine
of its own. A region of one replica may run its witness in the replica's process.

Files
    config.py    the sections of the TOML file, and the rules between them
    settings.py  reads the configuration from the file, the environment and flags
    nodes.py     from configuration to nodes: their machines, stores and address books
    process.py   the process of `surecast serve`: signals, draining, messages at the end
    region.py    the nodes of one process: start, drain, stop
    layout.py    a deployment on one machine: names, ports, files
    cluster.py   ... run as real processes
    local.py     a region inside the caller's own event loop
    check.py     --check-config: checks a configuration on this machine
    status.py    the status of a node, read from its machines without changing them
    alarms.py    problems of a node, their meaning and what to do
    metrics.py   the same for Prometheus
    files.py     the segments of a stream, for readers that can access the server's disk
    http.py      the HTTP port
    operations.py  ... its operations, as a table
    connections.py, limited_log.py   ... its connections and their bounds, and its log
    publishing.py, ndjson.py   ... publishing through it
    subscriptions.py   ... named subscriptions
    openapi.py   ... its description for programs
    logs.py      the log on stderr
    reference.py generates docs/configuration.md from the configuration classes
"""
