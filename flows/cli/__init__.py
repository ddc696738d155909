"""The command `nlac`, one module per group of commands."""
