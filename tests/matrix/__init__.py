"""Every protocol version and every option, compared with PostgreSQL's own account of a generated workload."""
