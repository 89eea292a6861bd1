"""`python -m spark_jms.cli`: the jmsq command where no script was installed."""

from spark_jms.cli.main import main

main()
