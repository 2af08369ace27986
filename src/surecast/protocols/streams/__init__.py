"""Streams: what every delivery needs of a region, and what clients ask of it.

Problem. Whatever carries events to readers, a region must know which streams exist and who owns
them, take publishes exactly once, keep what retention lets it keep, and show committed events.

Idea. One layer over the replicated logs does all that and knows nothing of other regions or meshes.
Deliveries are layers above it: they hear what happens to their streams and say where new ones are
made, which may be numbered now, and which must not be shown (`core.streams`).

Files
    config.py           what can be set
    messages.py         what clients and servers send each other
    service.py          the layer: directory, publishing, retention, readers
    stream.py           one stream at a replica
    directory.py        which streams exist: a log of the chain
    compaction_plan.py  which parts of a log are worth rewriting
    cursors.py          named subscriptions: a layer over the service
    cursor_log.py       the log they are kept in, and what it adds up to
    queries.py          which streams there are, where a time begins: a layer over the service
    publisher.py        a client that publishes, retries and gets acknowledgements
    subscriber.py       a client that follows streams from its region's servers
    fetcher.py          a client that reads ranges of positions
    inquirer.py         a client's questions, asked until they are answered
"""
