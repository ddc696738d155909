"""The command `nlac`: one module per group of commands, and what `nlac iterate` shows."""
