"""Algorithms that more than one protocol or experiment shares.

A part has no IO and no randomness of its own: time and generators are arguments.

workload.py        who updates which key and when: Zipf, Zeta, Poisson, growing key populations
serving.py         sending streams to those who follow them, and ranges to those who ask
requests.py        a machine that sends requests until they are answered
receive_window.py  what a reader that asks several peers has of a stream
peer_sampling.py   whom a member of a mesh knows: a random set that gossip keeps mixing
"""
