"""What a message is: its columns, its properties, and sets of its sequence numbers.

Not here: the order of messages (ordering), and what became of them (records).
"""
