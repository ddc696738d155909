"""The in-process backend: models of transformers, with continuous batching. Only `tasks.engines.backends` builds it."""
