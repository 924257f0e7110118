"""Operations: metrics, health verdicts, HTTP pages and logs for the operator.

`metrics` counts, `health` decides (pure), `admin` serves both over HTTP, `log` writes lines.
Must not: import the packages that it reports on; they, or the daemon, call this package.
"""
