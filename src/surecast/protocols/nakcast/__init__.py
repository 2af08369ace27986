"""Nakcast: one region's streams as datagrams; readers ask again for what they miss.

The model protocol: small, complete, and a delivery that users can choose. Read it first.

Problem. A stream has many readers over a network that loses, doubles and reorders datagrams. If
each reader confirmed each batch, the server would spend its time on confirmations. And a reader
that falls far behind should cost the others nothing.

Idea. Only the reader knows what it misses. Batches carry their positions; a beacon tells how far
the stream goes, so that a lost last batch is missed, too. A reader holds what came early and sends
a negative acknowledgement (NAK) for the holes. The server answers from its log, but only for the
newest `repair_max` positions. Older ones are *lost* to this reader, which is told exactly which.

    config.py    NakcastConfig of a server, ReaderConfig
    messages.py  Join, Leave, Data, Beacon, Nak, Gone
    server.py    a layer over the stream service: sends what is committed, answers NAKs
    reader.py    puts batches in order, asks for holes, reports losses
    delivery.py  what a client knows of the delivery
    role.py      what a server knows of it: configuration, layer, alarms, status, metrics
    checks.py    the guarantees G1 to G4, judged from outside

Streams live in the region that owns their name. There is no mesh, and no other region has them.
docs/protocols/nakcast.md walks through the code.
"""
