"""The next batch of a consumer: the one before acknowledged, the limit applied, messages planned and claimed.

Not here: the batch as a value (core/records/batch), and what is read to plan it (messages)."""
