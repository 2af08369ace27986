"""The experiments of the Gryphon paper in which a link or a broker fails.

failures.py         gryphon-e3, -e4, -e5: points, rows and verdicts
failures_plan.py    when the failure begins and ends
failures_run.py     one simulated run: the paper's network of brokers, one failure
failures_figure.py  the figure: latency of two brokers' subscribers around the failure
"""
