"""Listens to the stages' events and keeps what people ask about."""

from torch_galley.observe import dump, metrics

__all__ = ["dump", "metrics"]
