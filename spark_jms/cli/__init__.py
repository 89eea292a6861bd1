"""The `jmsq` command: see `spark_jms.cli.main`.

Features: C14 (docs/FEATURES.md)
"""
