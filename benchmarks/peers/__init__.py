"""Peers: methods of others that we only compare with."""
