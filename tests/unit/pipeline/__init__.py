"""Tests of `cdcd.pipeline`."""
