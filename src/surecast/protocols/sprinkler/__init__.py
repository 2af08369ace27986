"""Sprinkler: every event of a stream, in order, in every region, at millions of events a second.

Problem. Send updates to many machines in a few datacenters without losing any, although links and
servers fail, and without keeping forever what newer events have made obsolete.

Idea. Each stream is owned by one region, which assigns positions to its events. Regions advertise
the ends of their copies; each pulls every stream from one other region that is ahead, not
necessarily the owner. Publishers declare which events are obsolete: retention rules and `collect`
events turn positions into *voids*, which are kept and sent as ranges. Inside a region, clients
notify each other of new events, get most events from each other and the rest from a server.

Streams themselves (directory, publishing, retention, readers) are `protocols.streams`; the server
side of this delivery is two layers above it.

Files
    config.py           the configuration; `paper()` has the paper's own values
    messages.py         messages between regions, and between members of a mesh
    region_sync.py      the layer between regions: advertise, pull, serve
    sources.py          where to pull a stream from: advertisements and switching
    recovery.py         an owner that has lost part of its streams
    forks.py            two histories of a stream: detected, reported, resolved
    forwarding.py       requests of clients for streams that another region owns
    mesh_server.py      the layer of servers in the meshes of the region's clients
    mesh_peer.py        a client in a mesh: requests, answers, delivers
    mesh_membership.py  its base class: neighbours, and notifications to them
    delivery.py, role.py, observe.py   the client side and the server side, for the registry; alarms
    checks.py           the guarantees as functions of publishers' and subscribers' records

Spec and departures: docs/protocols/sprinkler.md.
"""
