"""One folder per protocol; none imports another. `chain` and others are stacked by `stacks.py`."""
