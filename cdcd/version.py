"""cdcd's version; all other places read it from here."""

__version__ = "0.1.0"
