"""Schema registries: a schema in, the id that frames its records out.

`settings` holds plain values, `confluent` talks to any registry with Confluent's interface: by `rest`, or where only
Confluent's own client will do, `through_confluent`.
Must not: import config, know rows, or decide what an incompatible schema leads to.
"""
