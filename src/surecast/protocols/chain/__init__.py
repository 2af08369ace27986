"""Chain replication: the replicas of a region keep the same logs despite crashes, like one server.

Problem. A region must survive the loss of machines without losing an acknowledged event, without
assigning a position twice, and without appending a retried publish twice.

Idea. Replicas form a chain. The first one, the *head*, assigns positions and appends. Each replica
stores a batch, then forwards it to the next. What the last one, the *tail*, has stored is
*committed*, and acknowledgements go back up the chain. Since every replica stores before it
forwards, a predecessor's log always contains its successor's log. So any replica can be removed
from the chain without losing a committed event, and the others continue.

The members and their order are the *configuration* of the chain. It is kept by a small service (the
region's witness). Each configuration has a number, the *epoch*; every message carries the epoch.

This layer knows logs and positions, not streams or regions. The layer above, the stream service,
uses it as a replicated log with exactly-once appends.

    Submit(log, batch, token)   append a publisher's batch; answered by Submitted(token, seq) once
                                it is committed, or by Refused(token, why)
    AppendAt(log, batches)      append batches that already have positions
    AppendOwn(log, batch)       append a batch that the head itself has made
    events to the layer above:  Appended, Committed, RoleChanged, Truncated
                                (core/replicated.py has the whole interface)

Files
    config.py    the configuration
    messages.py  messages between replicas and with the configuration service
    dedup.py     the accepted batches of each publisher, to recognise retries
    logs.py      the state of one log at a replica, and of its successor's copy
    replica.py   the machine: submit, append, store, forward, commit, acknowledge
    roles.py     configurations: joining, being removed, handing over the tail
    service.py   the configuration service
    states.py    the states of a replica and of the service, and all transitions, as data
    invariants.py  the invariants of a replica, asserted in tests and simulations
    role.py, observe.py  how the server uses the chain: as a layer, and for its status and alarms
"""
