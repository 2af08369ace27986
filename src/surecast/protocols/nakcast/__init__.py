"""Nakcast: readers ask again for what they miss. The model protocol; read it before the others.

Problem. One publisher has a stream for many readers, over a network that loses, doubles and
reorders datagrams. If each reader confirmed each batch, the publisher would drown in confirmations.

Idea. The reader alone knows what it misses, so it alone speaks up. Batches carry their positions;
a beacon tells how far the stream goes, so that a lost last batch is missed, too; a reader holds
what came early and sends a negative acknowledgement (NAK) for the holes.

    config.py     NakcastConfig: who the readers are, how often the beacon, how much at once
    messages.py   Data, Beacon, Nak on the wire; the command Publish
    publisher.py  numbers batches, sends them, answers NAKs
    reader.py     puts batches in order, asks for holes
    checks.py     the guarantees G1 and G2, judged from outside

What it leaves out, on purpose: the publisher keeps all it has sent in memory and forgets it when it
crashes, and readers begin at position 1. docs/protocols/nakcast.md walks through the code.
"""
