"""The callback on real trainers: how it gets there, what it refuses, what outlives a restart."""

from __future__ import annotations

import copy
import gc
import json
import logging
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny, versions
from transformers import TrainerCallback
from trl import GRPOTrainer, SFTConfig, SFTTrainer

from truncation_guard import TruncationGuardCallback
from truncation_guard.record import FILE_NAME, read_record

HALF_CUT = [tiny.E3, tiny.E3, tiny.T8, tiny.T8]
REWARDS = [1.0, 0.0, 0.0, 0.0]
DOWNWEIGHTED = torch.tensor([1.4997, -0.4999, 0.0, 0.0] * 2)
"""(reward - 0.25) / (0.5 + 1e-4), and 0 where truncated."""


def warn_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [line for line in messages if line.startswith("[truncation-guard] WARN ")]


def codes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.split()[2] for line in warn_lines(caplog)]


def run(tmp_path: Path, guard: Any = None, rollouts: Any = HALF_CUT, **overrides: Any) -> Any:
    callbacks = [] if guard is None else [guard]
    made = tiny.trainer(
        tiny.config(tmp_path, **overrides), tiny.scripted(REWARDS), callbacks, rollouts
    )
    made.outputs = tiny.capture(made)
    made.train()
    return made


class TestGettingThere:
    @pytest.mark.parametrize("callback", [TruncationGuardCallback(), TruncationGuardCallback])
    def test_works_as_an_instance_and_as_a_class(self, tmp_path, callback):
        made = run(tmp_path, callback)
        assert torch.allclose(made.outputs[0]["advantages"], DOWNWEIGHTED, atol=1e-4)

    def test_works_when_added_before_training(self, tmp_path):
        made = tiny.trainer(tiny.config(tmp_path), tiny.scripted(REWARDS), rollouts=HALF_CUT)
        made.add_callback(TruncationGuardCallback())
        outputs = tiny.capture(made)
        made.train()
        # The capture lies under the hook here: TRL's own advantages, not yet guarded.
        assert torch.allclose(outputs[0]["advantages"][0], torch.tensor(1.4997), atol=1e-4)
        used = torch.tensor(list(made._logs["advantages"]))
        assert torch.allclose(used, DOWNWEIGHTED, atol=1e-4)

    def test_works_when_attached_by_hand_and_attaching_twice_is_once(self, tmp_path):
        made = tiny.trainer(tiny.config(tmp_path), tiny.scripted(REWARDS), rollouts=HALF_CUT)
        guard = TruncationGuardCallback()
        guard.attach(made)
        guard.attach(made)
        outputs = tiny.capture(made)
        made.train()
        assert torch.allclose(outputs[0]["advantages"], DOWNWEIGHTED, atol=1e-4)
        assert sum(c is guard for c in made.callback_handler.callbacks) == 1
        (line,) = [h for h in made.state.log_history if "truncation_guard/truncated_share" in h]
        assert line["truncation_guard/truncated_share"] == 0.5

    def test_a_weight_of_one_half_is_applied_once_though_somebody_wraps_our_wrapper(self, tmp_path):
        made = run(tmp_path, TruncationGuardCallback(truncated_weight=0.5))
        expected = torch.tensor([1.4997, -0.4999, -0.24995, -0.24995] * 2)
        assert torch.allclose(made.outputs[0]["advantages"], expected, atol=1e-4)

    def test_a_method_that_was_replaced_after_construction_is_wrapped_again(self, tmp_path):
        made = tiny.trainer(
            tiny.config(tmp_path), tiny.scripted(REWARDS), [TruncationGuardCallback()], HALF_CUT
        )
        made._generate = lambda prompts: GRPOTrainer._generate(made, prompts)
        outputs = tiny.capture(made)
        made.train()
        assert torch.allclose(outputs[0]["advantages"], DOWNWEIGHTED, atol=1e-4)

    def test_evaluate_without_train_counts(self, tmp_path, caplog):
        args = tiny.config(tmp_path, per_device_eval_batch_size=8, num_generations_eval=4)
        made = tiny.trainer(
            args,
            tiny.scripted(REWARDS),
            [TruncationGuardCallback()],
            HALF_CUT,
            eval_dataset=tiny.prompts(2),
        )
        metrics = made.evaluate()
        assert metrics["eval_reward"] == 0.25
        logged = made.state.log_history[-1]
        assert logged["eval_truncation_guard/truncated_share"] == 0.5
        assert logged["eval_truncation_guard/groups_truncated"] == 1.0
        assert codes(caplog) == ["truncated"]
        assert "split=eval" in warn_lines(caplog)[0]

    def test_a_second_training_starts_a_new_record_and_new_cooldowns(self, tmp_path, caplog):
        made = run(tmp_path, TruncationGuardCallback())
        made.train()
        assert codes(caplog) == ["truncated", "truncated"]
        runs = read_record(tmp_path / FILE_NAME)
        assert [len(r.batches) for r in runs] == [1, 1]
        assert all(r.end is not None for r in runs)

    def test_removing_the_callback_switches_it_off(self, tmp_path):
        guard = TruncationGuardCallback()
        made = tiny.trainer(tiny.config(tmp_path), tiny.scripted(REWARDS), [guard], HALF_CUT)
        made.remove_callback(guard)
        outputs = tiny.capture(made)
        made.train()
        expected = torch.tensor([1.4997, -0.4999, -0.4999, -0.4999] * 2)
        assert torch.allclose(outputs[0]["advantages"], expected, atol=1e-4)
        assert not (tmp_path / FILE_NAME).exists()

    def test_a_subclass_of_the_callback_works(self, tmp_path):
        class MyGuard(TruncationGuardCallback):
            pass

        made = run(tmp_path, MyGuard(), save_strategy="steps", save_steps=1)
        assert torch.allclose(made.outputs[0]["advantages"], DOWNWEIGHTED, atol=1e-4)

    def test_it_can_be_copied_and_pickled_after_a_training(self, tmp_path):
        guard = TruncationGuardCallback(mode="exclude")
        run(tmp_path, guard)
        for twin in (copy.deepcopy(guard), pickle.loads(pickle.dumps(guard))):
            assert twin.state() == guard.state()

    def test_somebody_elses_generation_is_not_counted(self, tmp_path):
        guard = TruncationGuardCallback()
        made = run(tmp_path, guard)
        before = guard.state()
        made._generate(["w3"] * 8)
        assert guard.state() == before

    @pytest.mark.parametrize("first", ["attach", "add"])
    def test_attached_and_added_it_hears_each_event_once(self, tmp_path, first):
        made = tiny.trainer(tiny.config(tmp_path), tiny.scripted(REWARDS), rollouts=HALF_CUT)
        guard = TruncationGuardCallback()
        add = {"attach": lambda: guard.attach(made), "add": lambda: made.add_callback(guard)}
        add[first]()
        add["add" if first == "attach" else "attach"]()
        made.train()
        lines = (tmp_path / FILE_NAME).read_text().splitlines()
        kinds = [json.loads(line)["kind"] for line in lines]
        assert kinds == ["start", "batch", "end"]

    def test_attaching_during_training_does_not_break_the_next_save(self, tmp_path):
        class Late(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 1:
                    TruncationGuardCallback().attach(made)

        args = tiny.config(tmp_path, max_steps=3, save_strategy="steps", save_steps=1)
        made = tiny.trainer(args, tiny.scripted(REWARDS), [Late()], HALF_CUT)
        made.train()
        assert (tmp_path / "checkpoint-3").is_dir()
        assert "truncation_guard/truncated_share" not in made.state.log_history[0]
        assert made.state.log_history[2]["truncation_guard/truncated_share"] == 0.5

    def test_added_in_the_middle_of_a_training_it_does_not_break_the_next_save(self, tmp_path):
        class Late(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == 1:
                    made.add_callback(TruncationGuardCallback())

        args = tiny.config(tmp_path, max_steps=3, save_strategy="steps", save_steps=1)
        made = tiny.trainer(args, tiny.scripted(REWARDS), [Late()], HALF_CUT)
        made.train()
        assert (tmp_path / "checkpoint-3").is_dir()
        made.train()
        assert made.state.log_history[0]["truncation_guard/truncated_share"] == 0.5

    def test_a_limit_of_numpy_is_as_good(self, tmp_path):
        """As a percentile of lengths gives it."""
        guard = TruncationGuardCallback(raise_limit_to=np.int64(32), cooldown=np.int64(1))
        settings = {"max_completion_length": np.int64(8), "save_strategy": "steps", "save_steps": 1}
        made = run(tmp_path, guard, max_steps=2, **settings)
        assert made.state.log_history[1]["truncation_guard/truncated_share"] == 0.5
        assert (tmp_path / "checkpoint-2").is_dir()

    def test_one_guard_on_two_trainers_treats_each_as_its_own(self, tmp_path):
        guard = TruncationGuardCallback(mode="exclude")
        args = tiny.config(tmp_path / "plain")
        plain = tiny.trainer(args, tiny.scripted(REWARDS), [guard], HALF_CUT)
        own = tiny.trainer(
            tiny.config(tmp_path / "own"),
            tiny.scripted(REWARDS),
            [guard],
            HALF_CUT,
            base=TestOwnMethods.Reorders,
        )
        plain.train()
        own.model.train()
        output = own._generate_and_score_completions([{"prompt": "w3"}] * 8)
        assert "tool_mask" not in output
        assert [len(r.batches) for r in read_record(tmp_path / "own" / FILE_NAME)] == [1]
        assert [len(r.batches) for r in read_record(tmp_path / "plain" / FILE_NAME)] == [1]

    def test_a_trainer_is_freed_as_soon_as_without_the_guard(self, tmp_path):
        def is_freed(callbacks):
            made = tiny.trainer(tiny.config(tmp_path), tiny.scripted(REWARDS), callbacks, HALF_CUT)
            left = weakref.ref(made)
            del made
            return left() is None

        gc.disable()  # else it may come in between
        try:
            assert is_freed([TruncationGuardCallback()]) == is_freed([])
        finally:
            gc.enable()


class TestWhatItRefuses:
    def test_another_trainer(self, tmp_path):
        args = SFTConfig(
            output_dir=str(tmp_path), use_cpu=True, report_to="none", bf16=False, max_length=8
        )
        with pytest.raises(TypeError, match=r"GRPOTrainer, RLOOTrainer.*got SFTTrainer"):
            SFTTrainer(
                model=tiny.model(),
                args=args,
                train_dataset=tiny.prompts(8).rename_column("prompt", "text"),
                processing_class=tiny.tokenizer(),
                callbacks=[TruncationGuardCallback()],
            )

    def test_a_second_guard_at_construction(self, tmp_path):
        guards = [TruncationGuardCallback(), TruncationGuardCallback()]
        with pytest.raises(ValueError, match="has a TruncationGuardCallback already"):
            tiny.trainer(tiny.config(tmp_path), tiny.scripted(REWARDS), guards)

    def test_a_second_guard_by_hand(self, tmp_path):
        guards = [TruncationGuardCallback()]
        made = tiny.trainer(tiny.config(tmp_path), tiny.scripted(REWARDS), guards)
        with pytest.raises(ValueError, match="Remove one of them"):
            TruncationGuardCallback().attach(made)

    def test_a_second_guard_added_before_training(self, tmp_path):
        guards = [TruncationGuardCallback()]
        made = tiny.trainer(tiny.config(tmp_path), tiny.scripted(REWARDS), guards)
        made.add_callback(TruncationGuardCallback())
        with pytest.raises(ValueError, match="has a TruncationGuardCallback already"):
            made.train()

    @pytest.mark.parametrize("event", ["on_init_end", "on_train_begin"])
    def test_events_without_a_trainer_name_attach(self, event):
        with pytest.raises(RuntimeError, match=r"guard\.attach\(trainer\)"):
            getattr(TruncationGuardCallback(), event)(None, None, None)


class TestOwnMethods:
    class Reorders(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            return {**output, "advantages": output["advantages"].flip(0)}

    class NeverGenerates(GRPOTrainer):
        def _generate(self, prompts: Any) -> Any:
            return super()._generate(prompts)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            rows = len(inputs)
            return {
                "prompt_ids": torch.full((rows, 1), 3),
                "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
                "completion_ids": torch.full((rows, 2), 5),
                "completion_mask": torch.ones(rows, 2, dtype=torch.long),
                "advantages": torch.ones(rows),
                "num_items_in_batch": torch.tensor(2 * rows),
            }

    def train(self, tmp_path: Path, base: type) -> Any:
        guard = TruncationGuardCallback(mode="exclude")
        made = tiny.trainer(
            tiny.config(tmp_path), tiny.scripted(REWARDS), [guard], HALF_CUT, base=base
        )
        outputs = tiny.capture(made)
        made.train()
        return made, outputs

    def test_a_subclass_that_overrides_a_rollout_method_is_measured_only(self, tmp_path, caplog):
        made, outputs = self.train(tmp_path, self.Reorders)
        flipped = torch.tensor([-0.4999, -0.4999, -0.4999, 1.4997] * 2)
        assert torch.allclose(outputs[0]["advantages"], flipped, atol=1e-4)
        assert codes(caplog) == ["measured-only", "truncated"]
        assert "Reorders has its own _generate_and_score_completions" in warn_lines(caplog)[0]
        assert all("mode=observe" in line for line in warn_lines(caplog))
        logged = made.state.log_history[0]
        assert logged["truncation_guard/truncated_share"] == 0.5
        assert "truncation_guard/groups_without_signal" not in logged

    def test_one_that_does_not_call_generate_is_left_alone(self, tmp_path, caplog):
        made, _ = self.train(tmp_path, self.NeverGenerates)
        assert made.state.global_step == 1
        errors = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "does not call TRL's `_generate`" in errors[0].getMessage()


class TestLosses:
    class OwnLoss(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            return super()._compute_loss(model, inputs)

    def weights(self, tmp_path: Path, base: type, caplog: Any) -> tuple[list[float], list[str]]:
        guard = TruncationGuardCallback(mode="exclude")
        made = tiny.trainer(
            tiny.config(tmp_path), tiny.scripted(REWARDS), [guard], HALF_CUT, base=base
        )
        outputs = tiny.capture(made)
        made.train()
        return outputs[0]["advantages"].tolist(), codes(caplog)

    def test_exclude_with_an_unknown_loss_is_said(self, tmp_path, caplog):
        advantages, said = self.weights(tmp_path, self.OwnLoss, caplog)
        assert advantages[0] == pytest.approx(0.7070, abs=1e-4)
        assert said == ["loss-scale", "truncated"]

    @versions.since("1.7", "GMPO")
    def test_exclude_knows_that_gmpo_divides_by_rows(self, tmp_path, caplog):
        from trl.experimental.gmpo import GMPOTrainer

        advantages, said = self.weights(tmp_path, GMPOTrainer, caplog)
        assert advantages[0] == pytest.approx(2 * 0.7070, abs=1e-4)
        assert said == ["truncated"]

    def test_penalize_leaves_a_penalty_with_a_negative_weight_alone(self, tmp_path):
        args = tiny.config(tmp_path, reward_weights=[1.0, -1.0])
        rewards = [tiny.scripted([0.0, 0.2, 0.2, 0.0]), tiny.scripted([0.5, 0.5, 5.0, 5.0])]
        guard = TruncationGuardCallback(mode="penalize")
        made = tiny.trainer(args, rewards, [guard], HALF_CUT)
        outputs = tiny.capture(made)
        made.train()
        # Totals after the bound: -0.5, -0.3, -5, -5 (row 3 kept its penalty and lost its 0.2).
        totals = torch.tensor([-0.5, -0.3, -5.0, -5.0])
        expected = (totals - totals.mean()) / (totals.std() + 1e-4)
        assert torch.allclose(outputs[0]["advantages"][:4], expected, atol=1e-4)


class TestResume:
    def first_half(self, tmp_path: Path, **overrides: Any) -> Path:
        run(
            tmp_path,
            TruncationGuardCallback(window=64),
            max_steps=2,
            save_strategy="steps",
            save_steps=2,
            **overrides,
        )
        return tmp_path / "checkpoint-2"

    def resumed(self, tmp_path: Path, guard: Any, **overrides: Any) -> Any:
        args = tiny.config(tmp_path, max_steps=4, save_strategy="steps", save_steps=4, **overrides)
        made = tiny.trainer(args, tiny.scripted(REWARDS), [guard] if guard else [], HALF_CUT)
        made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        return made

    def live_guard(self, made: Any) -> TruncationGuardCallback:
        (guard,) = [
            c for c in made.callback_handler.callbacks if isinstance(c, TruncationGuardCallback)
        ]
        return guard

    @pytest.mark.parametrize("restores", [False, True])
    @pytest.mark.parametrize("late", [False, True], ids=["at construction", "added later"])
    def test_window_and_cooldowns_go_on_and_the_new_settings_win(
        self, tmp_path, caplog, restores, late
    ):
        self.first_half(tmp_path)
        caplog.clear()
        args = tiny.config(
            tmp_path,
            max_steps=4,
            save_strategy="steps",
            save_steps=4,
            restore_callback_states_from_checkpoint=restores,
        )
        guard = TruncationGuardCallback(mode="exclude", window=64)
        made = tiny.trainer(args, tiny.scripted(REWARDS), [] if late else [guard], HALF_CUT)
        if late:
            made.add_callback(guard)
        made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert codes(caplog) == []  # the first line was at step 0, the next one is due at step 10
        saved = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
        state = saved["stateful_callbacks"]["TruncationGuardCallback"]
        assert state["args"] == {}
        window = state["attributes"]["restored_state"]["monitor"]["window"]
        assert len(window) == 4  # two batches before, two after
        assert sum(n for _, cut in window for _, n in cut) == 16
        used = torch.tensor(list(made._logs["advantages"]))
        assert torch.allclose(used, torch.tensor([0.7070, -0.7070, 0.0, 0.0] * 2), atol=1e-4)

    def test_the_record_names_the_step_it_goes_on_from(self, tmp_path):
        self.first_half(tmp_path)
        self.resumed(tmp_path, TruncationGuardCallback())
        (run_,) = read_record(tmp_path / FILE_NAME)
        assert run_.start["resumed_from_step"] == 2
        assert [step for _, step, _ in run_.batches] == [0, 1, 2, 3]

    @pytest.mark.parametrize("restores", [False, True])
    def test_a_guard_added_on_resume_works_and_so_does_the_next_save(self, tmp_path, restores):
        run(tmp_path, None, max_steps=2, save_strategy="steps", save_steps=2)
        made = self.resumed(
            tmp_path, TruncationGuardCallback(), restore_callback_states_from_checkpoint=restores
        )
        assert (tmp_path / "checkpoint-4").is_dir()
        assert torch.allclose(torch.tensor(list(made._logs["advantages"])), DOWNWEIGHTED, atol=1e-4)

    @pytest.mark.parametrize(
        "damage",
        [
            "nonsense",
            [],
            {"args": {}},
            {"args": {}, "attributes": {"restored_state": {"monitor": {"window": [[["x", 1]]]}}}},
            {"args": {}, "attributes": {"restored_state": 7}},
        ],
        ids=str,
    )
    def test_a_damaged_state_is_ignored_and_said_once(self, tmp_path, caplog, damage):
        path = self.first_half(tmp_path) / "trainer_state.json"
        state = json.loads(path.read_text())
        state["stateful_callbacks"]["TruncationGuardCallback"] = damage
        path.write_text(json.dumps(state))
        caplog.clear()
        made = self.resumed(tmp_path, TruncationGuardCallback())
        assert made.state.global_step == 4
        assert [m for r in caplog.records if "damaged" in (m := r.getMessage())] == [
            "[truncation-guard] the guard's state in the checkpoint is damaged: it does not know "
            "the window and the cool-downs of the WARN lines any more"
        ]
        assert codes(caplog) == ["truncated"]  # the cool-down starts afresh
        assert (tmp_path / "checkpoint-4").is_dir()


class TestReports:
    def test_warn_lines_come_with_logging_strategy_no(self, tmp_path, caplog):
        run(tmp_path, TruncationGuardCallback(), logging_strategy="no")
        assert codes(caplog) == ["truncated"]

    def test_no_warn_lines_with_none_but_the_metrics(self, tmp_path, caplog):
        made = run(tmp_path, TruncationGuardCallback(warn_above=None))
        assert codes(caplog) == []
        assert made.state.log_history[0]["truncation_guard/truncated_share"] == 0.5

    def test_summary_and_histogram_at_the_end(self, tmp_path, caplog):
        caplog.set_level(logging.INFO, logger="truncation_guard")
        run(tmp_path, TruncationGuardCallback(), max_steps=2)
        texts = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
        assert any(
            text.startswith(
                "[truncation-guard] training ended at step 2: 8 of 16 completions were truncated"
            )
            for text in texts
        )
        (histogram,) = [text for text in texts if "lengths of 16 completions" in text]
        assert [line.split()[-1] for line in histogram.splitlines()[1:]] == ["8", "8"]

    def test_histograms_on_the_way(self, tmp_path, caplog):
        caplog.set_level(logging.INFO, logger="truncation_guard")
        run(tmp_path, TruncationGuardCallback(histogram_every=2), max_steps=5)
        titles = [
            r.getMessage().splitlines()[0] for r in caplog.records if "lengths of" in r.getMessage()
        ]
        counts = [int(title.split()[3]) for title in titles]
        assert counts == [24, 16, 40]  # after steps 0-2, after steps 3-4, and all of them

    def test_the_log_names_the_record_once(self, tmp_path, caplog):
        caplog.set_level(logging.INFO, logger="truncation_guard")
        run(tmp_path, TruncationGuardCallback(), max_steps=3)
        named = [r for r in caplog.records if str(tmp_path / FILE_NAME) in r.getMessage()]
        assert len(named) == 1

    def test_record_off(self, tmp_path):
        run(tmp_path, TruncationGuardCallback(record=False))
        assert not (tmp_path / FILE_NAME).exists()

    def test_an_unwritable_record_is_said_once_and_training_goes_on(self, tmp_path, caplog):
        (tmp_path / FILE_NAME).mkdir()  # also root cannot write a file there
        made = run(tmp_path, TruncationGuardCallback(), max_steps=3)
        assert made.state.global_step == 3
        said = [r for r in caplog.records if "the record is off" in r.getMessage()]
        assert len(said) == 1
        assert torch.allclose(made.outputs[-1]["advantages"], DOWNWEIGHTED, atol=1e-4)

    def test_evaluation_during_training_does_not_enter_the_window(self, tmp_path, caplog):
        args = tiny.config(
            tmp_path, max_steps=2, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8
        )
        guard = TruncationGuardCallback()
        made = tiny.trainer(
            args,
            tiny.scripted(REWARDS),
            [guard],
            [tiny.T8] * 4 + [tiny.E3] * 4,
            eval_dataset=tiny.prompts(4),
        )
        made.train()
        state = guard.state()["attributes"]["restored_state"]["monitor"]
        assert sum(n for batch in state["window"] for part in batch for _, n in part) == 16
        lines = warn_lines(caplog)
        assert sum("split=eval" in line for line in lines) == 1  # the second one cools down
        splits = [split for split, _, _ in read_record(tmp_path / FILE_NAME)[0].batches]
        assert splits.count("train") == 2
        assert splits.count("eval") == 4

    def test_advised_limit_is_what_the_line_says(self, tmp_path):
        guard = TruncationGuardCallback()
        assert guard.advised_limit is None
        run(tmp_path, guard)
        assert guard.advised_limit == 16

    def test_an_infinite_reward_does_not_trip_the_record(self, tmp_path, caplog):
        made = tiny.trainer(
            tiny.config(tmp_path),
            tiny.scripted([float("inf"), 0.0, 0.0, 0.0]),
            [TruncationGuardCallback()],
            HALF_CUT,
        )
        made.train()
        assert not [r for r in caplog.records if r.levelno >= logging.ERROR]
        (run_,) = read_record(tmp_path / FILE_NAME)
        assert run_.batches["train", 0, 0]["reward"] is None
