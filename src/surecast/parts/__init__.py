"""Algorithms that more than one protocol or experiment uses.

A part does no IO, and reads no clock and no random generator of its own: both are arguments.

workload.py        synthetic workloads: which key is updated when (Zipf, Zeta, Poisson)
serving.py         sends streams to the peers that follow them, and ranges on request
forwarding.py      forwards requests for streams that another region owns, and the answers
requests.py        a client's machine that repeats requests until they are answered
receive_window.py  the state of a reader that requests one stream from several peers
peer_sampling.py   a random set of known peers for each member of a mesh, mixed by gossip
"""
