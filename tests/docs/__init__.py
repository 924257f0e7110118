"""What the documentation is made from besides docs/: the generated pages, and the site's hook."""
