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
report.py         `surecast lab report`: the results as static pages; html.py makes the HTML
torture.py        seeds of a swarm: run, added up, and entered into a ledger (`surecast sim`)
sprinkler/        the experiments of Sprinkler, E1 to E6

Listing the experiments loads neither matplotlib, numba nor pyarrow. docs/lab/ is the book of
results.
"""

from importlib import import_module

from surecast_lab.lab.verdict import Experiment, Progress, Verdict

__all__ = ["Experiment", "Progress", "Verdict", "experiments"]

# Each module has a tuple EXPERIMENTS; the order here is the order of the list.
_MODULES = (
    "surecast_lab.lab.sprinkler.drivers",
    "surecast_lab.lab.sprinkler.mesh",
    "surecast_lab.lab.sprinkler.load",
    "surecast_lab.lab.sprinkler.economy",
    "surecast_lab.lab.sprinkler.link",
    "surecast_lab.lab.sprinkler.age",
    "surecast_lab.lab.sprinkler.gc",
)


def experiments() -> dict[str, Experiment]:
    """Every experiment by its id, in the order of the papers."""
    found: dict[str, Experiment] = {}
    for name in _MODULES:
        for experiment in import_module(name).EXPERIMENTS:
            assert experiment.id not in found, f"two experiments are called {experiment.id}"
            found[experiment.id] = experiment
    return found
