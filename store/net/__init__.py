"""What two processes share when they talk: frames, the handshake, TLS, sockets, an event loop in a thread.

Not here: any message. A room that talks has its own: engine/connections.py, regions/protocol, webhdfs.
"""
