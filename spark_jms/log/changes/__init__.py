"""The change feed: what happened to the messages of all destinations, read from the numbers that their tables keep.

core/changes has the rules. `ChangeFeed` (feed.py) is the reader of the client, the command and Spark."""
