"""Free ports to listen on, for tests that run in parallel."""

from surecast_lab.testing.ports import free_base, free_ports

__all__ = ["free_base", "free_ports"]
