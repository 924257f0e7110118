"""The benchmark: the rate at which a backlog drains, the latency of a row, and the cost of each in CPU and memory."""
