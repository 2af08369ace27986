"""Sprinkler: every event of a stream, in order, in every region, at millions of events a second.

Problem. Tell many machines in a few datacenters about updates, losing none, although links and
servers fail, and without keeping for ever what newer events have made obsolete.

Idea. Each stream is owned by one region, which numbers its events. Regions advertise how far they
have come; each pulls every stream from one other region that is ahead, not necessarily the owner.
Publishers declare what is obsolete: retention rules and `collect` events turn positions into
*voids*, which are kept and shipped as ranges. Inside a region, clients tell each other how far they
are, get most events from one another and the rest from a server.

Streams themselves (directory, publishing, retention, readers) are `protocols.streams`; the server
side of this delivery is two layers above it.

Files
    config.py           what can be set; `paper()` has the paper's own choices
    messages.py         what regions send each other, and members of a mesh
    region_sync.py      the layer between regions: advertise, pull, serve
    sources.py          where to pull a stream from: advertisements and switching
    recovery.py         an owner that has lost part of what it owned
    forks.py            two histories of a stream: noticed, told, settled
    forwarding.py       what clients want of streams that another region owns
    mesh_server.py      the layer in the meshes of the region's clients
    mesh_peer.py        a client in a mesh: what it asks of whom, and what it answers
    mesh_membership.py  ... the half of it that knows its neighbours and tells them
    checks.py           the guarantees as functions of publishers' and subscribers' records

Spec and departures: docs/protocols/sprinkler.md.
"""
