"""Tests of `cdcd.session`."""
