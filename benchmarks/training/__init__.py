"""How fast training is, and how much memory it takes.

python -m benchmarks.training.versus_trl   LoRA training beside TRL's SFTTrainer, on a CPU
python -m benchmarks.training.gpu          LoRA training and generation on a GPU
"""
