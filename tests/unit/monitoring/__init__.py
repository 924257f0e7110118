"""Tests of `cdcd.monitoring`."""
