"""What the flows tell MLflow about prompts."""

from pathlib import Path

import pytest

from flows.deployments.tracking import PromptTexts
from prompts import template_text
from schemas.config import Config
from storage.store import Store
from tests.support.committed import commit_rows


@pytest.mark.parametrize("own", [None, "{% block system %}mine{% endblock %}"])
def test_a_stage_s_prompts_are_those_it_rendered_the_run_s_own_above_the_shipped_ones(
    tmp_path: Path, own: str | None
) -> None:
    config = Config()
    if own:
        (tmp_path / "own.j2").write_text(own)
        config = Config.model_validate({"roles": {"refine": {"template": str(tmp_path / "own.j2")}}})
    rendered = {"refine": "0", "correct_thought": "1"}
    committed = commit_rows(Store(tmp_path / "data"), "refinement", 0, {}, prompts=rendered)
    texts = PromptTexts(config)(committed)
    assert texts == {
        "refine": own or template_text("refine"),
        "correct_thought": template_text("correct_thought"),
    }
