"""Streams: the part of a region's replica that all deliveries and all clients use.

Problem. With any delivery, a region must know which streams exist and who owns them, accept each
publish exactly once, apply retention, and show committed events.

Idea. One layer over the replicated logs does this and knows nothing of other regions or meshes.
Deliveries are layers above it: they get events about their streams, and decide where a new stream
is created, which streams may get new positions, and which positions are shown (`core.streams`).

Files
    config.py           configuration of the layers and of the client's machines
    messages.py         messages between clients and servers of a region
    service.py          the layer: directory, publishing, retention, readers
    stream.py           one stream at a replica
    directory.py        which streams exist: a log of the chain
    compaction_plan.py  which parts of a log are worth rewriting
    cursors.py          named subscriptions: a layer over the service
    cursor_log.py       the log of named subscriptions, and the table built from it
    queries.py          lists of streams, positions of times: a layer over the service
    publisher.py        a client that publishes, retries and gets acknowledgements
    subscriber.py       a client that follows streams from its region's servers
    fetcher.py          a client that reads ranges of positions
    inquirer.py         a client's questions, repeated until they are answered
"""
