"""The benchmark: how fast a backlog is drained, how late a row arrives, what each of it costs."""
