"""A large log of the shape of real customer-service conversations, and its import in a process of its own."""

import json
import subprocess
import sys
from itertools import count
from pathlib import Path

LIMIT = 2 << 30  # bytes of data segment an import may have
IMPORT = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[3]),) * 2)
from storage.store import Store
from tasks.logs.importing import import_log
done = import_log(Store(Path(sys.argv[2])), "logged", Path(sys.argv[1]), "openai-chat")
print(done.episodes, done.transitions, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def long_conversation(number: int) -> dict[str, object]:
    """A conversation of 12 agent steps, each a tool call with a result of some 2,000 characters, and a reply."""
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
    written = 0
    with path.open("w", encoding="utf-8") as stream:
        for number in count():
            written += stream.write(f"{',' if number else '['}\n{json.dumps(long_conversation(number))}")
            if written >= size:
                stream.write("]\n")
                return number + 1
    raise AssertionError("unreachable: count() has no end")


def import_apart(path: Path, data: Path) -> tuple[int, int, float]:
    """Import a file in a process of its own, under a limit on its data segment: episodes, transitions, peak MiB."""
    command = [sys.executable, "-c", IMPORT, str(path), str(data), str(LIMIT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"the import of {path.name} failed: {done.stderr[-500:]}"
    episodes, transitions, peak = done.stdout.split()
    return int(episodes), int(transitions), float(peak)
