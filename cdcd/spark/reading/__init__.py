"""Reading a mirror: all tables as of one commit, the history of rows, net changes, SQL views, catalogs."""
