"""Swarms: a seed draws a cluster, a workload and faults; then everything heals and must agree.

Simulated, all but the last three files; those do the same to real processes.

Files
    cluster.py    a simulated Sprinkler deployment, with records of what clients saw
    crowd.py      mesh clients that come and go, looked into now and then
    demo.py       what `surecast demo` runs
    mesh.py       draws the worlds with meshes in them
    sprinkler.py  one seed: draw, run, heal, judge
    story.py      what became of everybody in one seed, as a picture
    workload.py   what publishers publish
    fleet.py      a deployment of processes, links through a relay, and the same judge
    process.py    what runs in one of them
    rounds.py     one seed: processes killed, stopped and cut off (`python -m`)
"""
