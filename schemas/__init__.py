"""Typed contracts: table rows, run configuration, manifests.

Pure data. This package imports no other package of the project, and no heavy library but pydantic (`frames`: polars).
"""
