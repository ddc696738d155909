"""Inference engines behind one protocol (`tasks.engines.protocol`), built from the table in `tasks.engines.backends`.

No prompts, roles or stages here: an engine sees chats, and answers or scores them.
"""
