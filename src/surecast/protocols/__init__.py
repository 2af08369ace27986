"""One folder per protocol. No protocol imports another; `stacks.py` composes their layers."""
