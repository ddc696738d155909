"""What the pipeline costs beside the work.

python -m benchmarks.overhead.pipeline   an iteration whose engines and trainer take no time
"""
