"""A session without a log shows no value of a row: the JVM's lines go to the standard error of the command."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
from pyspark.errors import PySparkException
from cdcd.spark.session import NO_LOG, session

def failing(batches):
    for batch in batches:
        raise ValueError(f"value {batch.column(0)[0].as_py()} of a row")
    yield

spark = session("cdcd verify", "1", log_level=NO_LOG)
try:
    spark.range(41, 42).mapInArrow(failing, "n bigint").collect()
except PySparkException as error:
    print("value 41 of a row" in str(error))
finally:
    spark.stop()
"""


def test_the_error_of_a_task_is_not_in_the_output() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n", done.stdout
    assert "41 of a row" not in done.stderr, done.stderr
