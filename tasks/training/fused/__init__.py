"""What training computes its own way: packed rows, fused layers and norms; on a CPU, attention and parallel
micro-batches too."""
