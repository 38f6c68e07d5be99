"""The vocabulary: what can be lowered to XLA, and how."""
