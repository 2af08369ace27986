"""Streams: the part of a region's replica that all deliveries and all clients use.

Problem. A *delivery* is a protocol that brings a stream's events to its readers. With any delivery,
a region must know which streams exist and which region owns them, accept each publish exactly once,
apply retention, and show committed events.

Idea. One layer over the replicated logs of the chain does this. It knows nothing of other regions,
or of meshes (clients that forward events to each other). Deliveries are layers above it: they get
events about their streams, and decide where a new stream is created, which streams may get new
positions, and which positions are shown to readers (`core.streams` is the interface).

Files
    config.py           configuration of the layers and of the client's machines
    messages.py         messages between clients and servers of a region
    service.py          the layer: directory, publishing, retention, readers
    stream.py           the state of one stream at a replica
    cold_reads.py       pieces of streams that are read from the disk beside other work
    directory.py        the list of all streams, which is a log of the chain
    compaction_plan.py  which parts of a log are worth rewriting
    cursors.py          named subscriptions: a layer over the service
    cursor_log.py       the log of named subscriptions, and the table built from it
    queries.py          lists of streams, positions of times: a layer over the service
    publisher.py        a client that publishes, retries and gets acknowledgements
    subscriber.py       a client that follows streams from its region's servers
    fetcher.py          a client that reads ranges of positions
    inquirer.py         a client that sends questions until they are answered
    role.py, observe.py the service as a role of a replica: layers, status, alarms, metrics
"""
