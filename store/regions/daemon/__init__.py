"""The process of a daemon: `python -m spark_jms.store.regions.daemon` starts one, `...daemon.stop` stops it (R3, R4).

Public: `daemon.Daemon` and `daemon.main`, `options.StartOptions` and `StopOptions`, `settings.from_environment`.
"""
