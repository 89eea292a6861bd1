"""How a client sends: producers, shared commits, asynchronous and one-way sends, their pace and their spans.

Not here: the commit of a send (log/sending), and sends of a transacted session (transactions)."""
