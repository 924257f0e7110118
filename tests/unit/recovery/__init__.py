"""Tests of `cdcd.recovery`."""
