"""Pure algorithms that more than one protocol or experiment shares.

A part has no effects, no timers and no randomness of its own: time and generators are arguments.

workload.py  who updates which key and when: Zipf, Zeta, Poisson, growing key populations
"""
