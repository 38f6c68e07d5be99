"""Questions about a compiled program, answered from what the stages keep and tell."""
