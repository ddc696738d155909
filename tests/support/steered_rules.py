"""The scripted player of `tests.support.rules`, steered by files in the folder that NLAC_TEST_STEER names:

break   the role written in it kills the stage that asks it
wait    no request is answered while it is there
tired   the role and number written in it: so many of its next requests fail
killed  the next request of the role written in it kills the process that asks (SIGKILL)
child   the next request leaves a process in a session of its own, as vLLM does, and its id in `child-pid`
"""

import asyncio
import os
import signal
import subprocess
from pathlib import Path

from tasks.chat.messages import RequestError
from tasks.engines.protocol import Request
from tests.support.rules import number_game, role_of


async def steered(request: Request) -> str:
    """Follow the steering files, then play."""
    steer, role = Path(os.environ["NLAC_TEST_STEER"]), role_of(request)
    if (steer / "break").exists() and (steer / "break").read_text() == role:
        raise SystemExit(f"broken on purpose: {role}")
    if (steer / "killed").exists() and (steer / "killed").read_text() == role:
        (steer / "killed").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if (steer / "tired").exists():
        tired, left = (steer / "tired").read_text().split()
        if role == tired and int(left):
            (steer / "tired").write_text(f"{tired} {int(left) - 1}")
            raise RequestError("tired on purpose")
    if (steer / "child").exists():
        (steer / "child").unlink()
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (steer / "child-pid").write_text(str(child.pid))
    while (steer / "wait").exists():
        await asyncio.sleep(0.1)
    return number_game(request)


steered.score = number_game.score  # type: ignore[attr-defined]
