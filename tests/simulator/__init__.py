"""A simulated PostgreSQL for the pure core: random work, the messages of a walsender, and a model as judge."""
