"""The lazy `xla` device: plain torch tensors whose operations are recorded and run on demand."""
