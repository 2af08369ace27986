"""`surecast demo`: the main job end to end, with real processes.

run.py       the steps: servers, load, faults, audit
clients.py   the processes that publish and subscribe
audit.py     what the clients' logs say
"""
