"""Swarms: a seed draws a cluster, a workload and faults; then everything heals and must agree.

Simulated, down to workload.py; the files below it do the same to real processes.

Files
    trial.py      one seed of any scenario: schedule of faults, phases, coverage, result
    scenarios.py  the scenarios by name, found by looking at this folder
    cluster_scenario.py  what scenarios on regions of replicas have in common
    sprinkler.py  the scenario of Sprinkler
    sprinkler_mesh.py  the same with meshes of clients
    cluster.py    simulated regions of replicas, with records of what clients saw
    mesh_clients.py  mesh clients that come and go, looked into now and then
    query_clients.py  clients that ask: named subscriptions, patterns, times
    range_readers.py  clients that read ranges
    damage.py     damaged and rolled-back disks: which may happen when
    timeline.py   what became of everybody in one seed, as a picture
    workload.py   what publishers publish
    process_cluster.py  a deployment of processes, links through a relay, and the same judge
    wiring.py     who listens where, and who reaches whom through what
    process.py    what runs in one: a server as `surecast serve` runs it, a publisher, a reader
    delivery_log.py  what a reader was given, written down as it came
    cursor_app.py  a program with named subscriptions; the region keeps its place
    pattern_reader.py  a program that reads by a pattern
    session_report.py  what a process tells of its sessions: who, and why they ended
    process_faults.py  what can happen to a process cluster
    liveness_model.py  what should get on meanwhile
    process_torture.py  one seed: processes killed, stopped and cut off (`python -m`)
    upgrade_rounds.py  one seed: processes that lack a protocol, replaced one by one (`python -m`)
    load.py       programs at full load
    stall.py      one of them stops reading (`python -m`)
"""
