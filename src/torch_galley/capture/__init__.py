"""User code -> Captured."""
