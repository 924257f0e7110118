"""The files of a target, by its URI: a local folder, a bucket, HDFS; each with put-if-absent and put-if-match."""
