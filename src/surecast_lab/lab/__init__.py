"""The lab repeats the experiments of the papers; `surecast lab` runs them and shows the results.

Each experiment produces a table, a figure and a *verdict*, which compares the claims of the paper
with our measurements. An experiment consists of *points*: runs with different parameters and seeds.

    for id, experiment in experiments().items(): ...
    verdict = lab.run.run(experiments()["sprinkler-e6"], progress, out_dir, seeds=(1, 2, 3))

verdict.py        Experiment (its points, how to run one, how to judge all), Verdict
run.py            runs an experiment in processes or on Spark, and writes its files
points.py         the file with the results of one point; it can be reused by later runs
pool.py           runs tasks in processes of this machine; pipeline/sweep.py uses Spark instead
summary.py        means, confidence intervals and quartiles over seeds: in numpy, and as Spark SQL
student.py        Student's t, for confidence intervals
figures.py        axes, lines and saving, so that all figures look alike
report.py         `surecast lab report`: the results as static pages; html.py makes the HTML
torture.py        `surecast sim`: runs many seeds of a swarm (a simulated fault test), adds up
                  the results, and appends them to a file
state_pages.py    writes the pages of state tables in docs/
sprinkler/        the experiments of Sprinkler, E1 to E6
gryphon/          the experiments of Gryphon, E3 to E5

Listing the experiments loads neither matplotlib, numba nor pyarrow. The results are in docs/lab/.
"""

from importlib import import_module

from surecast_lab.lab.verdict import Experiment, Progress, Verdict

__all__ = ["Experiment", "Progress", "Verdict", "experiments"]

# Each module has a tuple EXPERIMENTS. `surecast lab list` shows them in this order.
_MODULES = (
    "surecast_lab.lab.sprinkler.drivers",
    "surecast_lab.lab.sprinkler.mesh",
    "surecast_lab.lab.sprinkler.load",
    "surecast_lab.lab.sprinkler.economy",
    "surecast_lab.lab.sprinkler.link",
    "surecast_lab.lab.sprinkler.age",
    "surecast_lab.lab.sprinkler.gc",
    "surecast_lab.lab.gryphon.failures",
)


def experiments() -> dict[str, Experiment]:
    """Every experiment by its id, in the order of the papers."""
    found: dict[str, Experiment] = {}
    for name in _MODULES:
        for experiment in import_module(name).EXPERIMENTS:
            assert experiment.id not in found, f"two experiments are called {experiment.id}"
            found[experiment.id] = experiment
    return found
