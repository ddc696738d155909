"""Texts of the roles: their formats, transcripts, leaks and discounting. Pure functions of strings."""
