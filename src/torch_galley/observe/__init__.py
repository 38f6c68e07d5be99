"""Listens to the stages' events and keeps what people ask about."""

from torch_galley.observe import dump, log, metrics

__all__ = ["dump", "log", "metrics"]
