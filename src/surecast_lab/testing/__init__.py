"""Tools for tests, benchmarks and demos that run real processes.

workers.py     starts worker processes, calls their methods, suspends, kills and ends them
deployment.py  deployments of real servers on free ports, with links between the regions
ports.py       finds free ports; each pytest worker has its own block of ports
relay.py       a relay through which processes communicate: it adds delay, loss and a bandwidth
               limit, and cuts links; relay_*.py are its parts
"""
