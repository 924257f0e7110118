"""A simulated PostgreSQL for the pure core: random work, what a walsender writes of it, a model as judge."""
