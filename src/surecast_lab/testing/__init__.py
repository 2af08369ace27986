"""Tools for tests and runs with real processes.

workers.py     worker processes: start, call, stop, kill, end
deployment.py  deployments of real servers, with a network between the regions
ports.py       free ports, a block for each pytest worker
relay.py       links between real processes: delay, loss, bandwidth, cuts; relay_*.py are its parts
"""
