"""`surecast demo`: the main use case end to end, with real processes.

run.py       the steps: servers, load, faults, audit
clients.py   the processes that publish and subscribe
audit.py     the verdict from the clients' logs
"""
