"""HLO text as a stand-alone library: no torch, no jax."""
