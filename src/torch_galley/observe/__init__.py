"""Listens to the stages' events and keeps what people ask about."""
