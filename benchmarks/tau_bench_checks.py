"""Replays tau-bench's gold actions on every task, and says what doing nothing scores, with the CPU time of each.

python -m benchmarks.tau_bench_checks
"""

import sys
import time

from tasks.environments.tau_bench.package import SIZES, load_domain
from tasks.environments.tau_bench.validation import do_nothing, replay_gold


def main() -> int:
    """Print faults, scores and seconds of CPU.

    Returns:
        The number of faults.
    """
    began = time.process_time()
    for name in SIZES:
        load_domain(name)
    loaded = time.process_time()
    faults = replay_gold()
    replayed = time.process_time()
    scores = do_nothing()
    done = time.process_time()
    for line in faults:
        print(line)
    tasks = sum(sum(sizes.values()) for sizes in SIZES.values())
    print(f"loaded both domains in {loaded - began:.2f} s of CPU")
    print(f"gold actions: {tasks} tasks, {len(faults)} faults, {replayed - loaded:.2f} s of CPU")
    print(
        f"doing nothing, {done - replayed:.2f} s of CPU: "
        + ", ".join(f"{k} {v:.3f}" for k, v in scores.items())
    )
    return len(faults)


if __name__ == "__main__":
    sys.exit(main() > 0)
