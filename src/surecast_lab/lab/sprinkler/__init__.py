"""Sprinkler's experiments.

drivers.py     E1: throughput of real proxies as drivers are added
mesh.py        E2: throughput of a mesh of clients; its figure is in mesh_figure.py, its runs are in
               mesh_run.py, the ways a mesh is run in mesh_points.py, what is published in driver.py
load.py        E3: its latency as the load grows
economy.py     what a server sends as the mesh grows; mesh_measured.json is what real processes did
link.py        E4: a link between regions fails, without and with clients; its runs are in
               link_run.py, its figure in link_figure.py
age.py         E5: how keys fade with age
gc.py          E6: how much garbage collection by key saves; its workloads are in keys.py, its
               figure in gc_figure.py
"""
