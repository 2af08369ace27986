"""Every error Surecast raises on purpose, under one root.

Two blames are kept apart: `ConfigError` and `UsageError` are the caller's to mend, `PeerError` is
what a peer (or a corrupt disk block) sent us. An `AssertionError` is our own bug.
"""

__all__ = ["ConfigError", "PeerError", "StorageError", "SurecastError", "UsageError"]


class SurecastError(Exception):
    """The root of all errors of this package."""


class ConfigError(SurecastError):
    """A configuration value is missing, unknown or out of range; the message says which and why."""


class UsageError(SurecastError):
    """The caller asked for something that cannot be done as asked."""


class PeerError(SurecastError):
    """Bytes from outside do not make sense: truncated, oversized, corrupt, or of unknown kind."""


class StorageError(SurecastError):
    """The disk could not do what was asked of it."""
