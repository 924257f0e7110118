"""Tests of `cdcd.process`."""
