"""The record sets of consumers and subscriptions: who holds and uses them, and the tables that follow them.

Not here: what a record set is (core/records), and where its store is (servers)."""
