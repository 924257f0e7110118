"""The commands of `python -m cdcd.spark`, also for spark-submit: one module each, which has `run`.

In: the parsed arguments (`arguments`).  Out: an exit status; results on stdout, errors as one line of the log.
Invariant: what is wrong with the arguments and the configuration is reported before Spark starts.
Must not: have logic that a program cannot use without a command.
"""
