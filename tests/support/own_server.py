"""A vLLM server that the tests share."""

from dataclasses import dataclass
from pathlib import Path

from schemas.config import EngineSection, ModelSection
from tasks.engines.vllm.servers import acquire


@dataclass(frozen=True)
class OwnServer:
    """A vLLM server that this process keeps alive, and starts at its first use."""

    section: EngineSection
    model: ModelSection
    cache_dir: Path

    def address(self) -> tuple[str, str]:
        """Where it is and the key to it, as for a server that somebody else has started."""
        server, lease = acquire(self.section, self.model, self.cache_dir)
        lease.unlink()
        return f"{server.root_url}/v1", server.key
