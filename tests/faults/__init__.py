"""Faults between cdcd and its servers, and the oracle that judges the results."""
