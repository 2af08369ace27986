"""Sprinkler's experiments.

drivers.py     E1: throughput of real proxies as drivers are added
mesh.py        E2: throughput of a mesh of clients; mesh_figure.py has its figure, mesh_run.py its
               runs, mesh_points.py the variants of the mesh, driver.py the published load
load.py        E3: latency of the mesh as the load grows
economy.py     what a server sends as the mesh grows; mesh_measured.json has results of real
               processes
link.py        E4: a link between regions fails, without and with clients; link_run.py has its runs,
               link_figure.py its figure
age.py         E5: updates of keys by age
gc.py          E6: savings of garbage collection by key; keys.py has its workloads, gc_figure.py its
               figure
"""
