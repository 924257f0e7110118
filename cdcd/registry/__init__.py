"""Schema registries: a schema in, the id for the header of its records out.

`settings` has plain values, `confluent` talks to any registry with Confluent's interface: through `rest`, or through
`confluent_client` for features that only Confluent's own client has.
Must not: import config, know rows, or decide how cdcd treats an incompatible schema.
"""
