"""The peers of spark-jms, and the contract they share with it."""

from benchmarks.peers.base import LatencyPeer, Sender, ThroughputPeer

__all__ = ["LatencyPeer", "Sender", "ThroughputPeer"]
