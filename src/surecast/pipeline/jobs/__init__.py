"""The pipeline's jobs: each a plain function over DataFrames, and a verb of `surecast pipeline`.

workload.py  events by the billion, drawn by the laws of the papers' experiments
compact.py   what the retention rules leave of an archive, and voids for the rest
audit.py     what publishers offered beside what readers got: lost, doubled, misordered, how late
"""
