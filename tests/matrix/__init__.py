"""Every version of the protocol and every option against PostgreSQL's own account of a generated workload."""
