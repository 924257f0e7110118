"""Operations: numbers, verdicts, pages and logs for whoever runs cdcd.

`metrics` counts, `health` judges (pure), `admin` serves both over HTTP, `log` writes lines.
Must not: import the rooms that it reports on; they, or the daemon, tell it what happened.
"""
