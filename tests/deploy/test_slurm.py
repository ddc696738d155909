"""The batch scripts of deploy/slurm: a shell and Slurm read them, and what they call is there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.load import PROJECT_ROOT
from tests.support.waiting import wait_until

SCRIPTS = sorted((PROJECT_ROOT / "deploy" / "slurm").glob("*.sbatch"))
SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def shellcheck(script: Path) -> subprocess.CompletedProcess[str]:
    program = SHELLCHECK if SHELLCHECK.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    return subprocess.run([program, "--shell=bash", script], capture_output=True, text=True, check=False)


def test_there_is_a_script_for_one_node_and_one_for_workers() -> None:
    assert [script.name for script in SCRIPTS] == ["one_node.sbatch", "workers.sbatch"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    checked = shellcheck(script)
    assert checked.returncode == 0, checked.stdout


def test_shellcheck_finds_a_planted_mistake(tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.sbatch"
    text = SCRIPTS[0].read_text(encoding="utf-8")
    spoilt.write_text(text.replace('cd "$NLAC_HOME"', "cd $NLAC_HOME"), encoding="utf-8")
    assert "SC2086" in shellcheck(spoilt).stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_slurm_reads_every_option_because_no_command_stands_before_one(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/bin/bash"
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    options = [i for i, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert len(options) > 5 and max(options) < first
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[i]) for i in options)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_without_its_settings_names_the_one_that_is_missing(script: Path) -> None:
    ended = subprocess.run(
        ["bash", script], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    assert ended.returncode == 1 and "NLAC_HOME: the checkout" in ended.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose commands note how they are called; `prefect` goes on as the file `prefect.sh` says."""
    folder = tmp_path / ".venv" / "bin"
    folder.mkdir(parents=True)
    note = 'echo "$(basename "$0") $*" >> "$NLAC_HOME/calls"\n'
    commands = {
        "nlac": note,
        "scontrol": note,
        "prefect": note + '. "$NLAC_HOME/prefect.sh"\n',
        "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    }
    for name, lines in commands.items():
        (folder / name).write_text(f"#!/bin/bash\n{lines}", encoding="utf-8")
        (folder / name).chmod(0o755)
    return tmp_path


def started(script: str, home: Path, **settings: str) -> subprocess.Popen[str]:
    environment = {
        "PATH": f"{home / '.venv' / 'bin'}:/usr/bin:/bin",
        "NLAC_HOME": str(home),
        "SLURM_JOB_ID": "7",
    }
    return subprocess.Popen(
        ["bash", PROJECT_ROOT / "deploy" / "slurm" / script],
        env=environment | settings, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def calls(home: Path) -> list[str]:
    file = home / "calls"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


RUN = "prefect deployment run nlac/training --watch -p config=mine.yaml -p iterations=3"
SETTINGS = {"NLAC_CONFIG": "mine.yaml", "NLAC_ITERATIONS": "3"}


def test_a_job_whose_time_is_over_stops_its_stack_and_queues_itself_again(checkout: Path) -> None:
    (checkout / "prefect.sh").write_text("exec sleep 600\n", encoding="utf-8")
    job = started("one_node.sbatch", checkout, **SETTINGS)
    wait_until(lambda: RUN in calls(checkout), 60, "the run")
    job.terminate()
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 0 and "the next job goes on" in said
    assert calls(checkout) == ["nlac up --config mine.yaml", RUN, "nlac down", "scontrol requeue 7"]


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_whose_run_ends_stops_its_stack_and_ends_alike(checkout: Path, code: int) -> None:
    (checkout / "prefect.sh").write_text(f"exit {code}\n", encoding="utf-8")
    job = started("one_node.sbatch", checkout, **SETTINGS)
    job.communicate(timeout=60)
    assert job.returncode == code
    assert calls(checkout) == ["nlac up --config mine.yaml", RUN, "nlac down"]


JOINING = {
    "NLAC_DATA": "/shared",
    "NLAC_SERVER": "http://head:4217",
    "NLAC_STACK_SECRET": "/shared/secret",
}


def joining(checkout: Path, **settings: str) -> subprocess.Popen[str]:
    """A job of workers on one node, whose stack is up and holds its lock until there is a file `end`."""
    waits = 'until [ -e "$NLAC_HOME/end" ]; do sleep 0.1; done'
    lines = (
        'case $1 in down) touch "$NLAC_HOME/end"; exit;; join-training) exec sleep 600;; esac',
        'echo "$NLAC_STACK_DIR $NLAC_MIRROR" > "$NLAC_HOME/folders"',
        'mkdir -p "$NLAC_STACK_DIR"',
        f"flock \"$NLAC_STACK_DIR/lock\" bash -c '{waits}' &",
        'while flock --nonblock "$NLAC_STACK_DIR/lock" true; do sleep 0.1; done',
        'touch "$NLAC_HOME/ready"',
    )
    with (checkout / ".venv" / "bin" / "nlac").open("a", encoding="utf-8") as command:
        command.write("\n".join(lines) + "\n")
    job = started("workers.sbatch", checkout, **JOINING, **settings, TMPDIR=str(checkout / "tmp"))
    wait_until(lambda: (checkout / "ready").exists(), 60, "the stack of the node")
    return job


@pytest.fixture
def joined(checkout: Path) -> subprocess.Popen[str]:
    return joining(checkout)


TOGETHER = {"NLAC_TRAINING": "mine.yaml", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}


def test_nodes_that_train_together_join_the_first_one(checkout: Path) -> None:
    job = joining(checkout, **TOGETHER, SLURM_NODEID="1")
    joins = "nlac join-training --config mine.yaml"
    wait_until(lambda: joins in calls(checkout), 60, "the node that lends itself")
    job.terminate()
    job.communicate(timeout=60)  # the output ends when no process holds it any more
    assert calls(checkout) == ["nlac up --join http://head:4217 --serve inference", joins, "nlac down"]


def test_the_first_of_nodes_that_train_together_runs_the_stages(checkout: Path) -> None:
    job = joining(checkout, **TOGETHER, SLURM_NODEID="0")
    job.terminate()
    job.communicate(timeout=60)
    assert calls(checkout) == ["nlac up --join http://head:4217", "nlac down"]


def test_a_node_joins_the_server_with_folders_of_its_own_and_its_task_ends_with_its_stack(
    checkout: Path, joined: subprocess.Popen[str]
) -> None:
    own = f"{checkout}/tmp/nlac-7"
    assert (checkout / "folders").read_text(encoding="utf-8").split() == [f"{own}/stack", f"{own}/mirrors"]
    (checkout / "end").touch()
    said, _ = joined.communicate(timeout=60)  # the output ends when no process holds it any more
    assert joined.returncode == 1 and "has ended" in said
    assert calls(checkout) == ["nlac up --join http://head:4217", "nlac down"]


def test_a_node_whose_time_is_over_stops_its_stack(checkout: Path, joined: subprocess.Popen[str]) -> None:
    joined.terminate()
    joined.communicate(timeout=60)
    assert joined.returncode == 143
    assert calls(checkout) == ["nlac up --join http://head:4217", "nlac down"]
