"""Swarms: a seed draws a cluster, a workload and faults; then everything heals and must agree.

Files
    cluster.py    a simulated Sprinkler deployment, with records of what clients saw
    demo.py       what `surecast demo` runs
    sprinkler.py  one seed: draw, run, heal, judge
"""
