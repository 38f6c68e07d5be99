"""Lowered -> Compiled: XLA's executable, and the cache that keeps it."""
