"""Names that differ between versions of TRL, and the refusal of versions that cannot work."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import trl
from packaging.requirements import Requirement
from packaging.version import Version
from support import tiny
from support.stand_ins import stand_in, vllm
from trl import GRPOTrainer, RLOOTrainer

from truncation_guard import TruncationGuardCallback, profile_rollouts, set_max_completion_length
from truncation_guard.trainer import settings, versions
from truncation_guard.trainer.versions import OLDEST, WRAPPED_METHODS, check_version


def without(trainer, *names):
    for name in names:
        delattr(trainer, name)
    return trainer


USES = (
    lambda trainer: profile_rollouts(trainer, max_completion_length=9),
    lambda trainer: set_max_completion_length(trainer, 9),
)


class TestRefusal:
    @pytest.mark.parametrize("version", ["1.5.1", "1.0.0", "0.29.1", "1.6.0rc1"])
    def test_an_older_trl_is_refused_at_construction(self, version, tmp_path, monkeypatch):
        monkeypatch.setattr(trl, "__version__", version)
        with pytest.raises(RuntimeError) as error:
            tiny.trainer(tiny.config(tmp_path), len, [TruncationGuardCallback()])
        assert str(error.value) == (
            f"truncation-guard needs TRL 1.6.0 or newer, found {version}: that one counts a "
            "completion without a reward as one with reward 0. Run `pip install 'trl>=1.6.0'`."
        )

    @pytest.mark.parametrize("version", ["1.6.0", "1.6.1", "1.16.0", "1.17.0.dev0", "2.0.0"])
    def test_the_oldest_and_newer_ones_are_not(self, version, monkeypatch):
        monkeypatch.setattr(trl, "__version__", version)
        check_version(GRPOTrainer)
        check_version(RLOOTrainer)

    @pytest.mark.parametrize("base", [GRPOTrainer, RLOOTrainer])
    @pytest.mark.parametrize("name", WRAPPED_METHODS)
    def test_a_trl_that_lacks_a_method_is_refused_at_attach(
        self, base, name, tmp_path, monkeypatch
    ):
        algorithm = "grpo" if base is GRPOTrainer else "rloo"
        made = tiny.trainer(tiny.config(tmp_path, algorithm), len)
        monkeypatch.delattr(base, name)
        monkeypatch.setattr(trl, "__version__", "7.8.9")
        with pytest.raises(RuntimeError) as error:
            TruncationGuardCallback().attach(made)
        assert str(error.value) == (
            f"truncation-guard cannot watch the {base.__name__} of TRL 7.8.9, which has no {name}. "
            "Run `pip install -U truncation-guard`, or, where that does not help, "
            "`pip install 'trl~=1.16.0'`."
        )
        assert not any(
            isinstance(c, TruncationGuardCallback) for c in made.callback_handler.callbacks
        )

    @pytest.mark.parametrize("use", USES, ids=["profile", "limit"])
    def test_the_functions_refuse_it_too(self, use, tmp_path, monkeypatch):
        made = tiny.trainer(tiny.config(tmp_path), len)
        monkeypatch.setattr(trl, "__version__", "1.5.1")
        with pytest.raises(RuntimeError, match=r"^truncation-guard needs TRL 1\.6\.0 or newer"):
            use(made)

    def test_the_oldest_is_the_one_that_pip_is_told(self):
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
        told = map(Requirement, project["project"]["dependencies"])
        assert str(next(one.specifier for one in told if one.name == "trl")) == f">={OLDEST}"


class TestNames:
    def test_before_1_14_2_trl_knew_the_tokenizers_eos_alone(self):
        old = without(stand_in(), "eos_token_ids")
        assert versions.eos_token_ids(old) == [tiny.EOS]
        assert versions.eos_token_ids(stand_in(eos_token_ids=[1, 5])) == [1, 5]
        old.processing_class = SimpleNamespace(tokenizer=tiny.tokenizer())
        assert versions.eos_token_ids(old) == [tiny.EOS]

    def test_the_stop_tokens_of_the_model_that_vllm_obeys_count_all_the_same(self):
        old = without(stand_in(use_vllm=True, vllm_generation=vllm()), "eos_token_ids")
        old.model.generation_config.eos_token_id = [tiny.EOS, tiny.EOT]
        assert settings.generation_rules(old).stop_token_ids == {tiny.EOS, tiny.EOT}
        old.use_vllm = False  # generation gets a config of TRL's own
        assert settings.generation_rules(old).stop_token_ids == {tiny.EOS}

    @pytest.mark.parametrize("continuous", [False, True])
    def test_before_1_7_continuous_batching_was_called_paged(self, continuous):
        new = stand_in(use_transformers_continuous_batching=continuous)
        assert versions.uses_continuous_batching(new) is continuous
        old = without(
            stand_in(use_transformers_paged=continuous), "use_transformers_continuous_batching"
        )
        assert versions.uses_continuous_batching(old) is continuous

    def test_before_1_8_environments_were_made_with_the_trainer(self):
        old = without(stand_in(environments=[object()]), "environment_factories")
        assert versions.writes_prompts_itself(old)
        old.environments = None
        assert not versions.writes_prompts_itself(old)
        # Since then they are left over from the last batch.
        assert not versions.writes_prompts_itself(stand_in(environments=[]))

    def test_rloo_has_neither_environments_nor_rollout_functions(self):
        rloo = without(stand_in(), "environment_factories", "rollout_func")
        assert not versions.writes_prompts_itself(rloo)


@pytest.mark.parametrize("base", [GRPOTrainer, RLOOTrainer])
def test_this_trl_has_everything(base):
    check_version(base)
    assert Version(trl.__version__) >= Version(OLDEST)
