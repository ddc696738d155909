"""What training computes its own way on a CPU: fused layers, attention, packing, parallel micro-batches."""
