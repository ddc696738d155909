"""How well engines are used.

python -m benchmarks.inference.rollout         rollouts that wait for their environment
python -m benchmarks.inference.served_engine   one engine for all stages, or one for each
"""
