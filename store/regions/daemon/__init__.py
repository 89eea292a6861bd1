"""The process of a daemon: `python -m spark_jms.store.kinds.daemon` starts one, `...daemon.stop` stops it.

Public: `daemon.Daemon` and `daemon.main`, `options.StartOptions` and `StopOptions`, `settings.from_environment`.

Features: R3, R4 (docs/FEATURES.md)
"""
