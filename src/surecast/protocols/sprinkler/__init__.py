"""Sprinkler: every event of a stream, in order, in every region, at millions of events a second.

Problem. Tell many machines in a few datacenters about updates, losing none, although links and
servers fail, and without keeping for ever what newer events have made obsolete.

Idea. Each stream is owned by one region, which numbers its events. Regions advertise how far they
have come; each pulls every stream from one other region that is ahead, not necessarily the owner.
Publishers declare what is obsolete: retention rules and `collect` events turn positions into
*voids*, which are kept and shipped as ranges. Inside a region, clients tell each other how far they
are, get most events from one another and the rest from a server.

A region's server is a stack: `chain` below (replication inside the region), `proxy` above it.

Files
    config.py      what can be set; `paper()` has the paper's own choices
    messages.py    on the wire, and the commands and events at the edges
    streams.py     one stream at a replica: ends, retention, source
    directory.py   which streams exist: a log of the chain
    sources.py     where to pull a stream from: advertisements and switching
    exchange.py    what regions tell each other: advertise, pull, serve
    proxy.py       the machine: roles, publish, collect, recover
    hub.py         a server's place in the meshes of its region's clients
    client.py      a mesh client: the machine; what it asks of whom, and what it answers
    members.py     ... the half of it that knows its neighbours and tells them
    feed.py        one stream at a mesh client: delivered, early, asked for
    view.py        whom a member of a mesh knows
    publisher.py   a client that publishes, retries and gets acknowledgements
    subscriber.py  a thin client that follows streams from its region's servers
    fetcher.py     a thin client that fetches ranges of positions
    checks.py      the guarantees as functions of publishers' and subscribers' records

Spec and departures: docs/protocols/sprinkler.md.
"""
