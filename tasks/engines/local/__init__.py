"""The in-process backend: transformers' models under continuous batching."""
