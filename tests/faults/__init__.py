"""Faults between cdcd and its servers, and the oracle that judges what came of them."""
