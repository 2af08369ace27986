"""Where logs live. `memory.py` is the disk of a simulation; files come with the server."""
