"""Chain replication: several replicas that keep the same logs, through crashes, as one server.

Problem. A region must survive the loss of machines without losing an acknowledged event, without
reusing a position and without doubling a retried publish.

Idea. Replicas stand in a line. The head gives positions and appends; each replica stores, then
forwards; what the tail has stored is *committed*, and the news travels back up the line. Since
every replica stores before it forwards, a predecessor's log always contains its successor's, so
any replica can be cut out of the line and the rest goes on. Who stands where is a numbered
configuration (an *epoch*) kept by a small service; every message carries the epoch.

This layer knows logs and positions, not streams or regions. Above it sits whatever needs an
exactly-once replicated append: the stream service.

    Submit(log, batch, token)   →  Submitted(token, seq) once committed, or Refused(token, why)
    AppendAt(log, batches)      →  replicate batches that already have positions
    AppendOwn(log, batch)       →  append on behalf of the head itself
    ← Appended, Committed, RoleChanged, Truncated (all of it: core/replicated.py)

Files
    config.py    what can be set
    messages.py  what replicas and the service say to each other
    dedup.py     what each publisher has had accepted, so that a retry is recognised
    logs.py      the state of one log here, and of a follower's copy of it
    replica.py   the machine: submit, append, store, forward, commit, acknowledge
    roles.py     configurations: joining, being dropped, handing over the tail
    service.py   the configuration service, in memory
    states.py    the states of a replica and of the service, and all transitions, as data
    invariants.py  what must hold after every step, asserted in tests and simulations
"""
