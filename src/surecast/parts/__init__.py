"""Algorithms that more than one protocol or experiment uses.

A part has no IO and no randomness of its own: time and generators are arguments.

workload.py        which key is updated when: Zipf, Zeta, Poisson, growing key populations
serving.py         sends streams to their followers, and ranges to peers that request them
requests.py        a machine that sends requests until they are answered
receive_window.py  the state of a reader that requests one stream from several peers
peer_sampling.py   the peers that a member of a mesh knows: a random set, mixed by gossip
"""
