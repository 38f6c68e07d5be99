"""What of a program goes into XLA, what does not, and why: as data, text, JSON, DOT and a page."""
