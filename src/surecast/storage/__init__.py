"""Where logs live.

memory.py        logs and small states in memory, and what a crash leaves of them
store.py         what a driver needs of a disk; the disk that is only memory
journal.py       memory, and every change in one append-only file
journal_file.py  that file
records.py       the records in it
"""
