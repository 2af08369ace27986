"""Tools for tests and measurements of Surecast; a deployment does not use this package.

testing/   tools for runs with real processes: worker processes, deployments on free ports, and a
           relay that can delay, lose and cut the traffic of a link
swarm/     randomized fault tests: deployments, simulated or of real processes, under faults drawn
           from a seed; the checks use only what clients sent and received
bench/     `surecast bench`: measures real processes on one machine, and checks that no event is
           missing
lab/       repeats the experiments of the papers: each has a table, a figure and a verdict
demo/      `surecast demo`: a cluster of real processes under faults, audited at the end

Of the package `surecast`, only the subcommands in `surecast.cli` import this package.
"""
