"""What a destination is, and which member, server and subscription a message belongs to.

Not here: the settings themselves (spark_jms/settings), and the tables that keep them (log/destinations).
"""
