"""The lab: the papers' experiments, run again, each with a table, a figure and a verdict.

    for id, experiment in experiments().items(): ...
    verdict = lab.run.run(experiments()["sprinkler-e6"], progress, out_dir, seeds=(1, 2, 3))

verdict.py        Experiment (its points, how to run one, how to judge all), Verdict
run.py            runs an experiment and writes its files: points in processes or on Spark
points.py         a point's rows as a complete file that records the source it was made with
pool.py           tasks in processes of this machine; pipeline/sweep.py does the same on Spark
summary.py        means, confidence intervals and quartiles over seeds: in numpy, and as Spark SQL
student.py        Student's t
figures.py        axes, lines and saving, so that all figures look alike
report.py         `surecast lab report`: the results as static pages; html.py makes the HTML
torture.py        runs seeds of a swarm, adds up results, appends to a ledger (`surecast sim`)
state_pages.py    writes the pages of state tables in docs/
sprinkler/        the experiments of Sprinkler, E1 to E6

Listing the experiments loads neither matplotlib, numba nor pyarrow. The results are in docs/lab/.
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
