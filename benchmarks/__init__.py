"""The benchmark of spark-jms beside its peers; `make bench` runs `benchmarks/run.py`."""
