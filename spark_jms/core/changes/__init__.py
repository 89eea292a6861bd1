"""What happened to messages, as rows: the change feed, when messages fall due, and sums by minute.

The feed of a domain is in change.py, the messages that fall due in due_map.py, usage in usage_fold.py."""
