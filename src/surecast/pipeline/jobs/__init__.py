"""The Spark jobs: each is a function over DataFrames, and a subcommand of `surecast pipeline`.

archive.py   copies streams to partitioned Parquet files, exactly once
replay.py    publishes the events of an archive to a stream again
compact.py   applies retention rules to an archive: live events, and void ranges for the rest
audit.py     finds lost, duplicated and misordered events, by comparing the events that publishers
             published with the events that readers received; also measures latency
workload.py  generates billions of events with random keys, as in the papers' experiments
top_keys.py  reports the most frequent keys of each time window

Parts of jobs: trace.py, judge.py, queries.py and lateness.py belong to audit.py; runs.py to
compact.py; insertions.py and fit.py to workload.py.
"""
