"""The campaign: many faults at once under a load of transfers, lists and registers, judged by its own checker."""
