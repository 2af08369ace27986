"""Gryphon: guaranteed delivery of filtered streams through brokers.

Problem. Thousands of subscribers want small, different parts of a stream. Each must get exactly the
events that pass its filter, once and in order, also if brokers on the way crash, stall or lose
messages. Events should be stored only once, at the region that owns the stream.

Idea. A position of a stream is unknown, an event, or *final* (not needed here). Knowledge flows
down a tree of brokers and only grows; what is missing is requested upwards (*curiosity*). An event
that a filter has dropped becomes a final position, so it is never taken for a lost one. Brokers on
the way keep nothing on disk.

    config.py         GryphonConfig of a server or broker, ReaderConfig of a subscriber
    messages.py       Knowledge, Nack, Ack; Attach, Filters, Reach; Fetch; Join, Matched
    pieces.py         what a broker knows of a stream, and the owner's log in the same form
    stamps.py         which versions of filters have decided that positions are final
    matching.py       which broker below, or which subscription, wants which rows
    links.py          the neighbours of a broker, and which of them sends a stream
    line.py           the state of one stream at a broker
    broker.py         a broker: passes knowledge down, requests and acknowledgements up
    subscriptions.py  the subscriptions at a broker: horizon, gaps, reads at the owner
    pubend.py         the broker at a replica of a region, above the stream service
    reader.py         the subscriber
    delivery.py, role.py  the client side of the delivery `filtered`, and the server side

docs/protocols/gryphon.md explains the protocol and its code.
"""
