"""Where logs live.

memory.py          logs and small states in memory, and what a crash leaves of them
store.py           what a driver needs of a disk; the disk that is only memory
segments.py        the store of a real node: a journal for what is new, segments for what is not
config.py          its bounds
recovery.py        how it is opened, whatever is damaged
check.py           reading all segments once
salvage.py         what can still be read of damaged ones
frames.py          frames in a file, some of which may be damaged
ends.py            the mark: how far the journal went
journal_writer.py  the thread that writes the journal, with one sync for all that waits
journal_file.py    its file
records.py         the records in it
mover.py           moves from the journal to segments, and compactions
plan.py            what a move takes along
background.py      the thread that does these
segment_disk.py    what machines read of it
extents.py         pieces of logs in segments
segment_file.py    a segment's file
manifest.py        which segments make up each log
folder.py          the directory they are all in
modes.py           who may read its files
inspect.py         looking at such a directory from outside
"""
