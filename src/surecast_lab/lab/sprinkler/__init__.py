"""The experiments of the Sprinkler paper.

Some terms of the paper: a *proxy* is a region server, a *driver* is a publisher, and in the *mesh*
the clients of a region pass events to each other. *Garbage collection by key* removes events that
have a newer event with the same key.

drivers.py     E1: throughput of real proxies as drivers are added
mesh.py        E2: throughput of a mesh of clients; mesh_figure.py has its figure, mesh_run.py its
               runs, mesh_points.py the variants of the mesh, driver.py the simulated publishers
load.py        E3: latency of the mesh as the load grows
economy.py     how much a server sends as the mesh grows; mesh_measured.json has results of real
               processes
link.py        E4: a link between regions fails, without and with clients; link_run.py has its runs,
               link_figure.py its figure
age.py         E5: how often keys are updated, by their age
gc.py          E6: how much garbage collection by key saves; keys.py has its workloads,
               gc_figure.py its figure
"""
