"""Typed contracts: table rows, run configuration, manifests.

Pure data. Imports nothing of this project but itself, and no heavy library but pydantic (polars in
`frames` only).
"""
