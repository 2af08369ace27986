"""Storage of logs and small states, in memory and on disk.

memory.py          the disk of a simulated node, with crashes
store.py           the interface between drivers and stores; the store that is only memory
segments.py        the store of a real node: a journal for new batches, segments for older ones;
                   the thread that moves them
config.py          its bounds
recovery.py        opening a store, with or without damage
check.py           checking all segments
salvage.py         reading damaged segments
frames.py          reading frames of a file, some of which may be damaged
journal_writer.py  the thread that writes the journal, with one sync per group of records
journal_file.py    a file of the journal; the mark: how much of the journal is acknowledged
records.py         the records of the journal
mover.py           moves from the journal to segments, and compactions
plan.py            which pieces a move writes
segment_disk.py    what machines read of a store
extents.py         pieces of logs in segments
segment_file.py    the file of a segment
manifest.py        which segments make up each log
folder.py          the directory of a store
modes.py           permissions of its files
inspect.py         reading such a directory without opening the store
"""
