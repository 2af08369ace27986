"""Storage of a node's logs and small states, in memory and on disk.

A *log* holds the batches of one stream, without gaps from position 1. A *state* is a small value
with a name. New data is appended to a *journal*; it is moved to *segments* later. docs/storage.md
describes the files and the handling of crashes and damage.

memory.py          the disk of a simulated node, which can lose unsynced writes in a crash
store.py           the interface between drivers and stores; a store that is only in memory
segments.py        the store of a real node: a journal for new batches, segments for older ones;
                   the thread for moves and compactions
reads.py           the threads that read segments beside the event loop
config.py          the configuration of a store: limits, durability, permissions
recovery.py        opening a store, with or without damage
check.py           verifying the checksums of all segments
salvage.py         reading damaged segments
frames.py          reading encoded batches from a file that may be damaged
journal_writer.py  the thread that writes the journal, with one sync per group of records
journal_file.py    one file of the journal; the mark: how many of its bytes must not get lost
records.py         the records of the journal
mover.py           moves from the journal to segments, and compactions
plan.py            which batches a move writes
segment_disk.py    the logs and states of a store, as state machines read them
extents.py         the parts of logs that are in segments
segment_file.py    the file of a segment
manifest.py        the list of the segments that make up each log
folder.py          the directory of a store
modes.py           permissions of files and directories
inspect.py         reading a store's directory without opening the store
"""
