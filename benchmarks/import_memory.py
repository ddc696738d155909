"""What `nlac import` needs for a file that is larger than its memory: time, and peak memory by the file's size.

python -m benchmarks.import_memory [--gib 1] [--folder DIR]

Writes conversations of the shape of real customer-service logs (tool calls, tool results of some kilobytes) to two
files, one an eighth of the other, and imports each in a process of its own under a limit on its data segment
(RLIMIT_DATA), so that an import which grew with its file would be stopped by the system. Checks: the peak of the large
file is at most 1.3 of that of the small one, and below 1 GiB; the rows are all there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

LIMIT = 2 << 30  # bytes of data segment an import may have
RATIO, PEAK_MIB = 1.3, 1024.0
_CHILD = """
import resource, sys, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[3]),) * 2)
from storage.store import Store
from tasks.logs.importing import import_log
begun = time.monotonic()
done = import_log(Store(Path(sys.argv[2])), "logged", Path(sys.argv[1]), "openai-chat")
print(done.episodes, done.transitions, time.monotonic() - begun,
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def conversation(number: int) -> dict[str, object]:
    """A conversation of 12 agent steps, each a tool call with a result of some 2,000 characters."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": f"You help customers of shop {number}. " + "Follow the policy. " * 300},
        {"role": "user", "content": f"Where is my order {number}?"},
    ]
    for step in range(12):
        call_id = f"call_{number}_{step}"
        arguments = json.dumps({"order_id": f"#W{number}", "page": step})
        function = {"name": "get_order", "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        items = [
            {"item": f"{number}-{step}-{n}", "price": n * 1.25, "status": "delivered"} for n in range(32)
        ]
        messages.append(
            {"role": "tool", "tool_call_id": call_id, "name": "get_order", "content": json.dumps(items)}
        )
    messages.append({"role": "assistant", "content": "It was delivered."})
    return {"task_id": f"t{number % 500}", "reward": float(number % 3 == 0), "messages": messages}


def write_log(path: Path, size: int) -> int:
    """Write an array of conversations of at least `size` bytes; gives their number."""
    written = count = 0
    with path.open("w", encoding="utf-8") as stream:
        for text in _texts():
            count += 1
            written += stream.write(text)
            if written >= size:
                break
        stream.write("]\n")
    return count


def _texts() -> Iterator[str]:
    number = 0
    while True:
        yield f"{',' if number else '['}\n{json.dumps(conversation(number))}"
        number += 1


def measure(path: Path, data: Path, limit: int = LIMIT) -> tuple[int, int, float, float]:
    """Import a file in a process of its own: episodes, transitions, seconds, peak MiB of memory."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), str(data), str(limit)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the import of {path.name} failed: {done.stderr[-500:]}")
    episodes, transitions, seconds, peak = done.stdout.split()
    return int(episodes), int(transitions), float(seconds), float(peak)


def main() -> int:
    """Print a table; 1 where a check fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the large file")
    parser.add_argument(
        "--folder", type=Path, help="where to work; needs some twice the size; default: a temporary one"
    )
    given = parser.parse_args()
    peaks, failed = [], []
    print(f"{'file MiB':>9} {'episodes':>9} {'transitions':>12} {'seconds':>8} {'MiB/s':>6} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for name, share in (("small", 8), ("large", 1)):
            path = Path(folder) / f"{name}.json"
            count = write_log(path, int(given.gib * (1 << 30) / share))
            episodes, transitions, seconds, peak = measure(path, Path(folder) / name)
            size = path.stat().st_size / (1 << 20)
            print(
                f"{size:>9.0f} {episodes:>9} {transitions:>12} {seconds:>8.1f} {size / seconds:>6.1f} {peak:>9.0f}"
            )
            peaks.append(peak)
            if (episodes, transitions) != (count, 13 * count):
                failed.append(
                    f"{name}: {episodes} episodes and {transitions} transitions of {count} conversations"
                )
            path.unlink()
    if peaks[1] > RATIO * peaks[0]:
        failed.append(
            f"the large file's peak is {peaks[1] / peaks[0]:.2f} of the small one's, more than {RATIO}"
        )
    if peaks[1] > PEAK_MIB:
        failed.append(f"the peak is {peaks[1]:.0f} MiB, more than {PEAK_MIB:.0f}")
    print("\n".join(failed) or "constant memory: the peak does not grow with the file")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
