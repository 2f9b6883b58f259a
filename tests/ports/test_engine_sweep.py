"""Some of transformers' models in every setting, and the list of all that run.

``python -m tests.models_sweep`` runs all of them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the engine runs transformers models")
transformers = pytest.importorskip("transformers", reason="the engine runs transformers models")

from blockmgr import UnsupportedModelError  # noqa: E402
from blockmgr.ports.transformers import check_config  # noqa: E402
from tests.models_sweep import types_kept, version_kept  # noqa: E402
from tests.models_sweep.judge import Outcome, judge  # noqa: E402
from tests.models_sweep.tiny import SETTINGS, tiny_config  # noqa: E402

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "generate.md"
CLASSES = {c.model_type: c for c in transformers.MODEL_FOR_CAUSAL_LM_MAPPING}

# Windows that are passed on, only in the mask, or only in the cache of generate; capped scores;
# configs that need a padding token; part of a larger model; experts; several kinds of refusals.
SOME = (
    "llama",
    "mistral",
    "phimoe",
    "gemma2",
    "modernbert-decoder",
    "emu3",
    "granitemoe",
    "gpt_oss",
    "llama4_text",
    "gemma3n_text",
    "deepseek_v3",
)

torch.set_num_threads(1)


@cache
def outcome_of(model_type: str, setting: str) -> Outcome:
    return judge(CLASSES[model_type], setting)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("model_type", SOME)
def test_a_model_says_what_generate_says_or_is_refused(model_type: str, setting: str) -> None:
    outcome = outcome_of(model_type, setting)
    assert outcome.verdict in {"equal", "refused"}, outcome.why
    if setting == "plain" and transformers.__version__ == version_kept():
        assert (outcome.verdict == "equal") == (model_type in types_kept())


@pytest.mark.parametrize(
    ("model_type", "setting"), [("mistral", "window 6"), ("gemma2", "soft cap")]
)
def test_a_setting_changes_what_a_model_says(model_type: str, setting: str) -> None:
    """Otherwise the comparison would prove nothing."""
    outcomes = [outcome_of(model_type, each) for each in ("plain", setting)]
    assert [outcome.verdict for outcome in outcomes] == ["equal", "equal"]
    assert outcomes[0].truth != outcomes[1].truth


@pytest.mark.skipif(
    transformers.__version__ != version_kept(), reason="the list is of another transformers"
)
def test_all_that_are_said_to_run_are_accepted() -> None:
    refused = {}
    for model_type in types_kept():
        try:
            check_config(tiny_config(CLASSES[model_type]))
        except UnsupportedModelError as error:
            refused[model_type] = error.missing
    assert refused == {}


def test_the_guide_names_the_models_that_run() -> None:
    text = GUIDE.read_text()
    found = re.search(
        r"These (\d+) of the (\d+)\s+model types of transformers ([\d.]+) run.*?:\n\n(.*?)\n\n",
        text,
        re.DOTALL,
    )
    assert found is not None
    count, total, version, names = found.groups()
    assert re.findall(r"`([^`]+)`", names) == types_kept()
    assert (int(count), version) == (len(types_kept()), version_kept())
    if transformers.__version__ == version_kept():
        assert int(total) == len(CLASSES)
