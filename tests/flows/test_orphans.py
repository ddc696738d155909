"""The stack's supervisor ends orphans, but not the supervisors of vLLM servers, which leave their parents."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from schemas.load import PROJECT_ROOT
from tests.support.processes import all_end

SUPERVISOR = """
import os, subprocess, sys, time
from pathlib import Path
import flows.stack.supervisor
from flows.stack.processes import become_subreaper
from tasks.ports import free_port
from tasks.engines.vllm import leases
from tasks.engines.vllm import server_records, servers

root, helper, way = Path(sys.argv[1]), *sys.argv[2:]
flows.stack.supervisor.ORPHAN_GRACE_SECONDS = 0.5
become_subreaper()
supervisor = flows.stack.supervisor.Supervisor(root, 0, None)
folder, port = root / ".cache" / "servers" / "one", free_port(0)
leases.hold(folder, "stack")
sleep = "[sys.executable, '-c', 'import time; time.sleep(600)'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
orphan = f"import subprocess, sys; print(subprocess.Popen({sleep}).pid)"
lost = int(subprocess.run([sys.executable, "-c", orphan], stdout=subprocess.PIPE).stdout)
command = [sys.executable, helper, str(port), str(folder / "pids")]
servers.launch(folder, port, 60, command, {**os.environ, "NLAC_STACK": str(root)}, sleeps=False)
deadline = time.monotonic() + 60
server = server_records.read_server(folder)
while (Path(f"/proc/{lost}").exists() or server.state != "ready") and time.monotonic() < deadline:
    supervisor.reap_orphans()
    time.sleep(0.1)
    server = server_records.read_server(folder)
print(server.supervisor if server else 0, Path(f"/proc/{lost}").exists(), flush=True)
if way == "killed":
    os.kill(os.getpid(), 9)
supervisor.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_orphans_end_and_a_server_supervisor_ends_with_the_stack(tmp_path: Path, way: str) -> None:
    helper = PROJECT_ROOT / "tests" / "support" / "health_server.py"
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path), str(helper), way], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},
    )  # fmt: skip
    assert done.stdout, done.stderr
    server_supervisor, orphan_lives = done.stdout.split()
    assert server_supervisor != "0" and orphan_lives == "False"
    pids = [
        int(server_supervisor),
        *map(int, (tmp_path / ".cache" / "servers" / "one" / "pids").read_text().split()),
    ]
    assert all_end([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], 15)
