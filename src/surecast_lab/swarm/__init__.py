"""Swarms: a seed draws a cluster, a workload and faults; after healing all regions must agree.

Modules down to workload.py run in the simulator; those below it do the same with real processes.

Files
    trial.py      one seed of any scenario: schedule of faults, phases, coverage, result
    scenarios.py  the scenarios by name, found in this folder
    cluster_scenario.py  the common part of scenarios on regions of replicas
    sprinkler.py  the scenario of Sprinkler
    sprinkler_mesh.py  the same with meshes of clients
    cluster.py    simulated regions of replicas, with records of what clients did and received
    mesh_clients.py  mesh clients that join and leave, and checks of their internal state
    query_clients.py  clients that send queries: named subscriptions, patterns, times
    range_readers.py  clients that read ranges
    damage.py     damaged and rolled-back disks: which faults are allowed when
    timeline.py   the faults of one seed and the progress of its readers, as a picture
    workload.py   the events that publishers publish
    process_cluster.py  a deployment of processes, links through a relay, and the same judge
    wiring.py     addresses of nodes, and links between them
    process.py    the node in a process: a server as `surecast serve` runs it, a publisher, a reader
    delivery_log.py  the file in which a reader records its deliveries
    cursor_app.py  a program with named subscriptions; the region stores its position
    pattern_reader.py  a program that reads by a pattern
    session_report.py  a process's report of sessions: the peers, and why they ended
    process_faults.py  the faults of a process cluster
    liveness_model.py  which readers must make progress during faults
    process_torture.py  one seed: processes killed, stopped and cut off (`python -m`)
    upgrade_rounds.py  one seed: processes that lack a protocol, replaced one by one (`python -m`)
    load.py       programs at full load
    stall.py      one of them stops reading (`python -m`)
"""
