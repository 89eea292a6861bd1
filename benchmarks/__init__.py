"""The benchmark of spark-jms beside its peers: `benchmarks/run.py` is the door, `make bench` the command."""
