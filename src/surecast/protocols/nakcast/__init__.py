"""Nakcast: sends a stream to readers of one region as datagrams; readers request what they miss.

This is the model protocol: small, complete, and a delivery that users can choose. Read it first.

Problem. A stream has many readers over a network that loses, duplicates and reorders datagrams. If
each reader confirmed each batch, the server would spend its time on confirmations. And a reader
that falls far behind should not slow down the others.

Idea. Only the reader knows what it misses. Batches contain their positions. A periodic message, the
*beacon*, contains the end of the stream, so that a reader also notices a lost last batch. A reader
holds batches that arrive early, and sends a negative acknowledgement (NAK) for the missing ranges.
The server answers from its log, but only for the newest `repair_max` positions. Older positions are
*lost* to this reader, and the answer lists them.

    config.py    NakcastConfig of a server, ReaderConfig
    messages.py  Join, Leave, Data, Beacon, Nak, Gone
    server.py    a layer over the stream service: sends committed events, answers NAKs
    reader.py    puts batches in order, sends NAKs for missing ranges, reports losses
    delivery.py  the client side of the delivery (`core.endpoint.Delivery`)
    role.py      the server side as a role: configuration, layer, alarms, status, metrics
    checks.py    the guarantees G1 to G4, as checks of what publishers and readers observe

Streams exist only in the region that owns their name. Other regions have no copies, and readers
form no mesh. docs/protocols/nakcast.md explains the protocol and its code.
"""
