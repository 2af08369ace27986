"""Sprinkler: every event of a stream, in order, in every region, at millions of events a second.

Problem. Send updates to many machines in a few datacenters without losing any, although links and
servers fail, and without keeping forever what newer events have made obsolete.

Idea. Each stream is owned by one region, which assigns positions to its events. Regions advertise
the ends of their copies of streams. Each region pulls a stream from one other region that is ahead,
which is not necessarily the owner. Publishers declare which events are obsolete: retention rules
and `collect` events make positions *void*, and void positions are kept and sent as ranges. Inside a
region, clients form a *mesh* for each stream: they notify each other of new events, get most events
from each other and the rest from a server.

Users choose this protocol as the delivery `broadcast`. The directory of streams, publishing,
retention and other readers belong to `protocols.streams`. The server side of this delivery is two
layers above it.

Files
    config.py           the configuration; `paper()` has the paper's own values
    messages.py         messages between regions, and between members of a mesh
    region_sync.py      the layer between regions: advertise, pull, serve
    sources.py          decides from which region a stream is pulled
    recovery.py         recovers the streams of an owner that has lost part of them
    forks.py            detects and resolves two different histories of a stream
    mesh_server.py      the layer with which a server takes part in the meshes of clients
    mesh_peer.py        a client in a mesh: requests, answers, delivers
    mesh_membership.py  its base class: neighbours, and notifications to them
    delivery.py, role.py, observe.py   the client side and the server side, for the registry; alarms
    checks.py           the guarantees as functions of publishers' and subscribers' records

Spec and departures: docs/protocols/sprinkler.md.
"""
