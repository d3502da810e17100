"""Proof before trust: whether a candidate network is better or worse than the one in force."""
