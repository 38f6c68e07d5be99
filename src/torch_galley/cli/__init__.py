"""The command `galley`: one module a verb."""
