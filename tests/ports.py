"""Ports to listen at, for tests that run beside each other."""

from surecast_lab.testing.ports import free_base, free_ports

__all__ = ["free_base", "free_ports"]
