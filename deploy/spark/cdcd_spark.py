"""The program for spark-submit: `spark-submit ... deploy/spark/cdcd_spark.py mirror --config cdcd.yaml --target URI`.

cdcd has to be installed where the driver and the executors run, from the folder of the sources:
`pip install '.[spark]'`.
"""

import sys

from cdcd.spark.__main__ import main

sys.exit(main())
