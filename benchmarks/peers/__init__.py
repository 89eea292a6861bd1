"""The peers: what is measured beside spark-jms, and the contract that they and spark-jms keep."""

from benchmarks.peers.base import LatencyPeer, Sender, ThroughputPeer

__all__ = ["LatencyPeer", "Sender", "ThroughputPeer"]
