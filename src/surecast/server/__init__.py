"""The region server: what `surecast serve` runs, and `surecast.local()` inside its caller.

A region is a chain of replicas and one *witness*, which keeps the chain's configuration: its
members and their order. The witness and each replica are processes of their own (`surecast serve`),
in production on machines of their own. A region of one replica may run its witness in the replica's
process. A *node* is a replica or a witness: a state machine with its sockets and its disk
(`runtime.node`).

Configuration
    config.py         the sections of the TOML file, and the rules between them
    settings.py       reads the configuration from the file, the environment and flags
    check.py          `--check-config`: checks a configuration on this machine
    reference.py      generates docs/configuration.md from the configuration classes
Processes
    process.py        the process of `surecast serve`: signals, draining, the final error message
    region.py         starts, drains and stops the nodes of one process
    nodes.py          builds these nodes: their machines, stores and address books
    local.py          a region inside the caller's own event loop
    layout.py         plans a deployment on one machine: names, ports, configuration files
    cluster.py        runs such a deployment as real processes
Observation
    status.py         the status of a node, read from its machines without changing them
    alarms.py         the alarms of a node, with their meaning and what to do
    metrics.py        status, alarms and counters in the format of Prometheus
    logs.py           the log on stderr
The HTTP port
    http.py           the port and its request handlers
    operations.py     the table of its operations
    openapi.py        its OpenAPI description, generated from this table
    connections.py    bounds on its connections
    limited_log.py    its log, with a limit on lines about bad requests
    publishing.py     publishes the events of a request
    ndjson.py         parses events that are given as lines of JSON
    subscriptions.py  lists, resets and deletes named subscriptions
    files.py          lists the segment files of a stream, for readers that can access the disk
"""
