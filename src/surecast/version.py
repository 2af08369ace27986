"""The version of this package. CHANGELOG.md says what each version changed."""

__version__ = "0.2.0"
