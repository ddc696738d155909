"""One call per role: prompt, format and reading put together, the same way in every stage."""
