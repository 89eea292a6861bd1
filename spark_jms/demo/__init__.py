"""`make demo`: the flights of New York 2013 through a queue and a topic, a kill in the middle, and an account.

`python -m spark_jms.demo --help` tells the options. What it shows, step by step, is in `story.py`; what it claims at
the end is computed in `account.py` from the tables that the receivers wrote, not from what any part says of itself.

Notebooks and programs of your own may use the flights and the account: `from spark_jms.demo import account, queries`.
"""

__all__ = ["account", "flights"]  # modules
