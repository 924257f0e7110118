"""The one place that holds cdcd's version."""

__version__ = "0.1.0"
