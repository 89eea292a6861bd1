"""What two processes of a store share when they talk: frames, the handshake, TLS, sockets. It knows no message.

frames.py      bytes to messages and back; no I/O
handshake.py   mutual proof of a secret before the first frame; no I/O
channel.py     both over a blocking socket
tls.py         certificates and contexts
event_loop.py  an event loop in a thread, for callers that block
"""
