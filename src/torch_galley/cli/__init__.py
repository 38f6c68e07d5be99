"""The `galley` command, a verb a module: arguments in, a tool called, text or JSON out."""
