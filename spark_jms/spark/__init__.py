"""The data source format("jmsq") of Spark: streaming and batch reads, streaming and batch writes.

Not here: jobs that run on Spark (jobs), and what a batch claims (claims)."""
