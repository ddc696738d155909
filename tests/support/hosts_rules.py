"""The scripted player of the number game that says on which host it plays, and waits where it is told to.

In the folder that NLAC_TEST_STEER names: a request of a role leaves the empty file ROLE@HOST. While the file `wait` is
there, no request of the role written in it is answered.
"""

import asyncio
import os
from pathlib import Path
from socket import gethostname

from tasks.engines.protocol import Request
from tests.support.rules import number_game, role_of


async def located(request: Request) -> str:
    """Say where this is, wait if told to, then play."""
    steer, role = Path(os.environ["NLAC_TEST_STEER"]), role_of(request)
    (steer / f"{role}@{gethostname()}").touch()
    while (steer / "wait").exists() and (steer / "wait").read_text() == role:
        await asyncio.sleep(0.1)
    return number_game(request)


located.score = number_game.score  # type: ignore[attr-defined]
