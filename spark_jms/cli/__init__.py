"""The `jmsq` command: see `spark_jms.cli.__main__`.

Features: C14 (docs/FEATURES.md)
"""
