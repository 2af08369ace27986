"""Chain replication: several replicas keep the same logs, in spite of crashes, as one server.

Problem. A region must survive the loss of machines without losing an acknowledged event, without
reusing a position and without duplicating a retried publish.

Idea. Replicas form a chain. The head assigns positions and appends; each replica stores, then
forwards; what the tail has stored is *committed*, and acknowledgements go back up the chain. Since
every replica stores before it forwards, a predecessor's log always contains its successor's, so
any replica can be removed from the chain and the others continue. The members and their order are a
numbered configuration (an *epoch*) kept by a small service; every message carries the epoch.

This layer knows logs and positions, not streams or regions. The layer above, the stream service,
uses it as a replicated log with exactly-once appends.

    Submit(log, batch, token)   →  Submitted(token, seq) once committed, or Refused(token, why)
    AppendAt(log, batches)      →  replicate batches that already have positions
    AppendOwn(log, batch)       →  append on behalf of the head itself
    ← Appended, Committed, RoleChanged, Truncated (all of it: core/replicated.py)

Files
    config.py    the configuration
    messages.py  messages between replicas and with the configuration service
    dedup.py     the accepted batches of each publisher, to recognise retries
    logs.py      the state of one log here, and of a follower's copy of it
    replica.py   the machine: submit, append, store, forward, commit, acknowledge
    roles.py     configurations: joining, being removed, handing over the tail
    service.py   the configuration service
    states.py    the states of a replica and of the service, and all transitions, as data
    invariants.py  the invariants of a replica, asserted in tests and simulations
"""
