"""Swarms: randomized fault tests of whole clusters, in the simulator and with real processes.

A seed determines a cluster, a workload and faults. After the faults everything is healed, and then
all regions must reach the same state. The guarantees of the protocol must hold during the whole
run. `surecast sim` and the tests run swarms.

A *scenario* is the part that is specific to one protocol or variant: what to build, which faults
are allowed, and how to judge the result. Some terms of the files below: a *mesh client* exchanges
events with other clients of its region; a *thin* reader gets all events from a server. A stream's
*delivery* is the protocol that carries its events to readers.

In the list, modules down to workload.py run in the simulator; the modules after it run real
processes.

Files
    trial.py      runs one seed of any scenario: schedule of faults, phases, coverage, result
    scenarios.py  all scenarios of this folder by name, also those of deliveries not listed here
    cluster_scenario.py  the common part of scenarios on regions of replicas
    sprinkler.py  the scenario of Sprinkler, the protocol that replicates between regions
    sprinkler_mesh.py  the scenario of Sprinkler with meshes of clients
    sprinkler_deletion.py  the scenario of Sprinkler with streams that are deleted and created again
    sprinkler_typed.py  the scenario of Sprinkler with schemas that are changed
    sprinkler_filters.py  the scenario of Sprinkler with readers whose filters change
    sprinkler_cold.py  the scenario of Sprinkler with logs that must be read from the disk first
    cluster.py    simulated regions of replicas, with records of what clients did and received
    mesh_clients.py  mesh clients that join and leave; checks of their internal state
    query_clients.py  clients that send queries: named subscriptions, patterns, times
    range_readers.py  clients that read ranges
    filter_readers.py  clients that read with filters
    damage.py     damaged disks and disks replaced by older copies: when they are allowed
    timeline.py   the faults of one seed and the progress of its readers, as a picture
    workload.py   the events that publishers publish
    process_cluster.py  a deployment of processes, links through a relay; judged like a
                  simulated cluster
    wiring.py     addresses of nodes, and links between them
    process.py    the code of each process: a server as `surecast serve` runs it, a publisher or a
                  reader
    delivery_log.py  the file in which a reader records its deliveries
    cursor_app.py  a program with named subscriptions; the region stores its position
    pattern_reader.py  a program that reads by a pattern
    session_report.py  a process's report of sessions: the peers, and why they ended
    process_faults.py  the faults of a process cluster
    liveness_model.py  which readers must make progress during faults
    process_torture.py  program: kills, stops and cuts off processes
    upgrade_rounds.py  program: replaces processes that lack a protocol, one by one
    load.py       programs that publish and read at full load
    stall.py      program: one reader stops reading at full load
    sink_rounds.py  program: kills Spark drivers that write to streams
    spark_rounds.py  program: a Spark query reads while its region fails
    disk_faults.py, file_damage.py  damage to the data folders of real servers
    audit.py, audit_log.py  a judge for large runs, and the logs of clients that it reads
    traces.py     converts such logs to the tables that the Spark audit reads
"""
