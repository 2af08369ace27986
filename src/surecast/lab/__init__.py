"""The lab: the papers' experiments, run again, each with a table, a figure and a verdict.

    for id, experiment in experiments().items(): ...
    verdict = lab.run.run(experiments()["sprinkler-e6"], progress, out_dir, seeds=(1, 2, 3))

verdict.py        Experiment (a list of points, what to do with one, what to make of all), Verdict
run.py            from an experiment to its files: points run here, in processes or on Spark
points.py         a point's rows as a file that is whole, and known to be of this source
pool.py           tasks in processes of this machine; pipeline/sweep.py does the same on Spark
summary.py        means, confidence intervals and quartiles over seeds: in numpy, and as Spark SQL
student.py        Student's t
figures.py        axes, lines and saving, so that all figures look alike
book.py           `surecast lab report`: the results as static pages; html.py makes the HTML
torture.py        seeds of a swarm: run, added up, and entered into a ledger (`surecast sim`)
sprinkler_drivers.py  Sprinkler E1: throughput of real proxies as drivers are added
sprinkler_mesh.py Sprinkler E2: throughput of a mesh of clients; its figure is in
                  sprinkler_mesh_figure.py, its runs are in sprinkler_mesh_run.py, the ways a mesh
                  is run in sprinkler_mesh_points.py, what is published in sprinkler_driver.py
sprinkler_load.py Sprinkler E3: its latency as the load grows
sprinkler_economy.py  what a server sends as the mesh grows; mesh_measured.json is what real
                  processes did
sprinkler_link.py Sprinkler E4: a link between regions fails, without and with clients; its runs
                  are in sprinkler_link_run.py, its figure in sprinkler_link_figure.py
sprinkler_age.py  Sprinkler E5: how keys fade with age
sprinkler_gc.py   Sprinkler E6: how much garbage collection by key saves; its workloads are in
                  sprinkler_keys.py, its figure in sprinkler_gc_figure.py

Listing the experiments loads neither matplotlib, numba nor pyarrow. docs/lab/ is the book of
results.
"""

from importlib import import_module

from surecast.lab.verdict import Experiment, Progress, Verdict

__all__ = ["Experiment", "Progress", "Verdict", "experiments"]

# Each module has a tuple EXPERIMENTS; the order here is the order of the list.
_MODULES = (
    "surecast.lab.sprinkler_drivers",
    "surecast.lab.sprinkler_mesh",
    "surecast.lab.sprinkler_load",
    "surecast.lab.sprinkler_economy",
    "surecast.lab.sprinkler_link",
    "surecast.lab.sprinkler_age",
    "surecast.lab.sprinkler_gc",
)


def experiments() -> dict[str, Experiment]:
    """Every experiment by its id, in the order of the papers."""
    found: dict[str, Experiment] = {}
    for name in _MODULES:
        for experiment in import_module(name).EXPERIMENTS:
            assert experiment.id not in found, f"two experiments are called {experiment.id}"
            found[experiment.id] = experiment
    return found
