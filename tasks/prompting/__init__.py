"""Prompts: rendered from templates, and fitted into the context window."""
