"""What the program survives: kills, faults, damaged files and hostile texts.

python -m benchmarks.reliability.soak   kills by the dozen, over a real stack, and the tables compared afterwards

    configurations.py   the runs: scripted roles, transformers, a server, all three
    victims.py          finds the processes of a stack, and kills one
    schedule.py         which kill comes when, by seed
    ways.py             runs iterations: over a stack, or without Prefect
    driving.py          keeps a run going by what a user would do, kills, and waits for what comes of it
    tables.py           a run's tables beside those of an undisturbed run
    results.py          one file for each run, docs/results/soak
    stand_in/           a deterministic `vllm` for the real server supervisor

python -m benchmarks.reliability.faults        full disks, moved clocks, HTTP faults, two writers
python -m benchmarks.reliability.bit_flips     flipped bits and truncations, and who finds them
python -m benchmarks.reliability.fuzz          hostile completions through every parser and environment
python -m benchmarks.reliability.random_yaml   configurations at random
"""
