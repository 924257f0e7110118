"""Metrics that are described where they are made: of the daemon (`cdcd.ops`) and of the mirror (`cdcd.spark`).

Must not: know what a metric is about.
"""
