"""Sources of the documentation outside docs/: the generators of pages, and the site's hook."""
