"""Does it learn? Bars and settings stand in docs/learning.md.

python -m benchmarks.learning.learning_curve [controls]   the proof on FrozenLake (make learn, make learn-controls)
python -m benchmarks.learning.ablations                   the algorithm without each of its parts
python -m benchmarks.learning.baselines                   other algorithms on FrozenLake
python -m benchmarks.learning.comparison report           all algorithms on two worlds (make compare)
python -m benchmarks.learning.language_model run NAME       SmolLM2 in the two learned roles (make learn-lm)
python -m benchmarks.learning.guess_number                a language model in every role
python -m benchmarks.learning.leak_check                  how well planted leaks are found
"""
