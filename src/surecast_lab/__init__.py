"""The test and measurement side of surecast: nothing here runs in a deployment.

testing/   ports and the link relay: what tests and runs with real processes share
swarm/     deployments under faults drawn from a seed, simulated or of real processes, judged from
           outside
bench/     `surecast bench`: real processes on one machine, measured and counted to the event
lab/       the papers' experiments: table, figure, verdict
demo/      `surecast demo`

Only the command line's verbs import this package.
"""
