"""What a subscription has finished and claimed of a member: record sets, batches, redelivery, refusals.

Not here: the stores that keep the records (claims/servers).
"""
