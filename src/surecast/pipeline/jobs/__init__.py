"""The pipeline's jobs: each a plain function over DataFrames, and a verb of `surecast pipeline`.

workload.py  billions of events, drawn by the laws of the papers' experiments
compact.py   applies retention rules to an archive: live events, and voids for the rest
audit.py     compares what publishers offered with what readers received: lost, duplicated,
             misordered, latency
"""
