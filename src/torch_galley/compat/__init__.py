"""The torch_xla names, as thin modules over the public API, for `galley run`."""
