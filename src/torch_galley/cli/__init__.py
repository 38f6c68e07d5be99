"""The command `galley`: one file per verb, arguments in, text or JSON out."""
