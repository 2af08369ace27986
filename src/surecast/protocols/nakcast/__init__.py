"""Nakcast: one region's streams as datagrams; readers request again what they miss.

The model protocol: small, complete, and a delivery that users can choose. Read it first.

Problem. A stream has many readers over a network that loses, duplicates and reorders datagrams. If
each reader confirmed each batch, the server would spend its time on confirmations. And a reader
that falls far behind should not slow down the others.

Idea. Only the reader knows what it misses. Batches carry their positions; a beacon carries the end
of the stream, so that a reader also notices a lost last batch. A reader holds early batches and
sends a negative acknowledgement (NAK) for the holes. The server answers from its log, but only for
the newest `repair_max` positions. Older ones are *lost* to this reader, and the answer says which.

    config.py    NakcastConfig of a server, ReaderConfig
    messages.py  Join, Leave, Data, Beacon, Nak, Gone
    server.py    a layer over the stream service: sends what is committed, answers NAKs
    reader.py    puts batches in order, sends NAKs for holes, reports losses
    delivery.py  the client side of the delivery (`core.endpoint.Delivery`)
    role.py      the server side as a role: configuration, layer, alarms, status, metrics
    checks.py    the guarantees G1 to G4, judged from outside

Streams live in the region that owns their name. There is no mesh, and no other region has them.
docs/protocols/nakcast.md walks through the code.
"""
