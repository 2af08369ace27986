"""`surecast demo`: three regions of real servers survive faults, and the result is audited.

run.py       the steps: servers, load, faults, audit
clients.py   the processes that publish and subscribe
audit.py     the verdict from the clients' logs
"""
