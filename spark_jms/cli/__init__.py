"""The `jmsq` command (C14): see `spark_jms.cli.main`."""
