"""Tests and measurements of surecast: nothing here runs in a deployment.

testing/   worker processes, deployments on free ports, and the link relay
swarm/     deployments under faults drawn from a seed, simulated or of real processes, judged from
           outside
bench/     `surecast bench`: real processes on one machine, measured; every event is counted
lab/       the papers' experiments: table, figure, verdict
demo/      `surecast demo`

Only the command line's verbs import this package.
"""
