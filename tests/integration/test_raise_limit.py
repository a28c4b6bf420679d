"""`raise_limit_to` in real trainings: when the limit goes up, and what else changes by it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from support import tiny, versions
from support.tool_calls import CALL, END, LONG, TURNS, chat_model, chat_trainer
from transformers import TrainerCallback

from truncation_guard import TruncationGuardCallback, set_max_completion_length
from truncation_guard.record import FILE_NAME, read_record
from truncation_guard.trainer.limit import get_limit, raise_limit

WINDOW = 64
"""Completions, of which a generation batch has 8."""


def write(made: Any, rows: Sequence[Sequence[int]]) -> list[tuple[bool, int]]:
    """Let generation answer with these, cut at the live limit; (training, limit) of each call."""
    answers, calls = itertools.cycle(rows), []

    def generate(prompt_ids: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Any, None]:
        limit = get_limit(made)
        calls.append((made.model.training, limit))
        ids = [list(next(answers))[:limit] for _ in prompt_ids]
        return (ids, None) if hasattr(made, "loss_type") else ids

    made._generate_single_turn = generate
    return calls


def needs(tokens: int) -> list[int]:
    """A completion that ends after so many tokens."""
    return [*([5, 6, 7] * tokens)[: tokens - 1], tiny.EOS]


def finished(completion_ids: Sequence[Sequence[int]], **kwargs: Any) -> list[float]:
    """1 for what ended, a little less for what is long."""
    return [float(ids[-1] == tiny.EOS) - len(ids) / 1000 for ids in completion_ids]


def trainer(
    folder: Any, algorithm: str = "grpo", guard: Any = None, model: Any = None, **settings: Any
) -> Any:
    defaults = {"max_steps": 80, "max_completion_length": 16, "learning_rate": 1e-4}
    args = tiny.config(folder, algorithm, **(defaults | settings))
    callbacks = [] if guard is None else [guard]
    return tiny.trainer(args, finished, callbacks, model=model or long_model())


def long_model() -> Any:
    """With room for 512 tokens."""
    return tiny.model(max_position_embeddings=512)


def guard(ceiling: int = 128, **options: Any) -> TruncationGuardCallback:
    return TruncationGuardCallback(**({"window": WINDOW, "raise_limit_to": ceiling} | options))


def limits(calls: list[tuple[bool, int]]) -> list[int]:
    """The limits of training in the order in which they came."""
    return [limit for limit, _ in itertools.groupby(limit for training, limit in calls if training)]


def lines(caplog: pytest.LogCaptureFixture, code: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if f" WARN {code} " in r.getMessage()]


def batches(folder: Path) -> list[dict[str, Any]]:
    return list(read_record(folder / FILE_NAME)[-1].batches.values())


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_a_task_that_needs_40_tokens_gets_them(
    algorithm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = trainer(tmp_path, algorithm, guard())
    calls = write(made, [needs(40), needs(30), needs(40), needs(20)])
    made.train()
    assert limits(calls) == [16, 32, 64]
    shares = [entry["truncated"] / entry["completions"] for entry in batches(tmp_path)]
    assert shares[0] == 1.0
    assert shares[-1] < 0.05
    rewards = [entry["reward"] for entry in batches(tmp_path)]
    assert rewards[0] < 0 < 0.9 < rewards[-1]
    assert made.args.max_completion_length == made.max_completion_length == 64
    first, second = lines(caplog, "limit-raised")
    # 16 batches of 8 completions make two windows.
    assert first == (
        "[truncation-guard] WARN limit-raised step=15 mode=downweight limit=16 raised_to=32 "
        "window_share=1 window_completions=128 | 100% and then 100% of the completions of two "
        "windows were cut off under max_completion_length=16: it is raised to 32 before one of the "
        "next rollouts, twice as much, because what they need is not identified -> expect longer "
        "rollouts and more memory, and set max_completion_length to it in the next run"
    )
    assert " limit=32 raised_to=64 " in second


@pytest.mark.slow
def test_generation_itself_writes_longer_completions(tmp_path: Path) -> None:
    made = trainer(
        tmp_path, guard=guard(64, warn_above=0.01), max_completion_length=8, max_steps=40
    )
    made.generation_config.suppress_tokens = [tiny.EOS, tiny.EOT]
    made.train()
    longest = [max(n for n, _ in entry["lengths"]["cut"]) for entry in batches(tmp_path)]
    assert [n for n, _ in itertools.groupby(longest)] == [8, 16, 32]


@pytest.mark.slow
def test_a_model_that_never_stops_gets_the_ceiling_and_then_another_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = trainer(tmp_path, guard=guard(50), max_steps=100)
    calls = write(made, [[5] * 200])
    made.train()
    assert limits(calls) == [16, 32, 50]
    (line,) = lines(caplog, "not-length")
    assert line.split(" | ")[1] == (
        "100% and then 100% of the completions of two windows were cut off under "
        "max_completion_length=50, and raise_limit_to=50 or what the longest prompt (1 tokens) "
        "leaves of the context window leaves no room for more -> if most of them are getting "
        "somewhere, allow more; otherwise look elsewhere: at "
        "the stop tokens, at completions that repeat themselves (log_completions=True shows them), "
        "at a reward that pays for length"
    )


@pytest.mark.slow
def test_where_a_raise_lets_nothing_more_end_it_was_the_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = trainer(tmp_path, guard=guard(400), max_steps=100)
    calls = write(made, [[5] * 500, needs(10)])
    made.train()
    assert limits(calls) == [16, 32]
    (line,) = lines(caplog, "not-length")
    assert line.split(" | ")[1] == (
        "50% and then 50% of the completions of two windows were cut off under "
        "max_completion_length=32, and 50% before it was last raised: more room lets hardly any "
        "more of them end, so length is not the cause, and the limit stays from now on -> look "
        "elsewhere: at the stop tokens, at completions that repeat themselves (log_completions="
        "True shows them), at a reward that pays for length"
    )


@pytest.mark.slow
def test_nothing_is_raised_where_nothing_is_truncated(tmp_path: Path) -> None:
    made = trainer(tmp_path, guard=guard(), max_steps=40)
    calls = write(made, [needs(10)])
    made.train()
    assert limits(calls) == [16]


@pytest.mark.slow
def test_an_evaluation_between_a_decision_and_its_raise_keeps_the_limit(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 18}
    args = tiny.config(tmp_path, max_completion_length=16, **settings)
    made = tiny.trainer(args, finished, [guard(32)], eval_dataset=tiny.prompts(8))
    calls = write(made, [[5] * 200])
    made.train()
    training = [limit for is_training, limit in calls if is_training]
    # Decided on the 16th batch; that of the evaluation shows that no guard has failed.
    assert training == [16] * 16 + [32] * 2
    place = [i for i, (is_training, _) in enumerate(calls) if is_training][16]
    assert {limit for _, limit in calls[:place]} == {16}
    assert {limit for _, limit in calls[place:]} == {32}


@pytest.mark.slow
def test_evaluation_does_not_count(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 1}
    args = tiny.config(tmp_path, max_completion_length=16, max_steps=20, **settings)
    made = tiny.trainer(args, finished, [guard(48)], eval_dataset=tiny.prompts(8))
    calls = []

    def generate(prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append((made.model.training, get_limit(made)))
        row = needs(10) if made.model.training else [5] * 200
        return [row[: get_limit(made)] for _ in prompt_ids], None

    made._generate_single_turn = generate
    made.train()
    assert {limit for _, limit in calls} == {16}
    assert any(not training for training, _ in calls)


@pytest.mark.slow
def test_the_raised_limit_survives_a_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"max_steps": 30, "save_strategy": "steps", "save_steps": 30}
    made = trainer(tmp_path, guard=guard(), **settings)
    write(made, [needs(40)])
    made.train()
    assert get_limit(made) == 32
    resumed = trainer(tmp_path, guard=guard(), **(settings | {"max_steps": 60}))
    calls = write(resumed, [needs(40)])
    resumed.train(resume_from_checkpoint=True)
    assert limits(calls) == [32, 64]
    # The settings of the new script win.
    for options in ({}, {"raise_limit_to": 24}):
        other = trainer(
            tmp_path,
            guard=TruncationGuardCallback(window=WINDOW, **options),
            **(settings | {"max_steps": 32}),
        )
        calls = write(other, [needs(40)])
        caplog.clear()
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-30"))
        allowed = options.get("raise_limit_to", 16)
        assert limits(calls) == [allowed]
        assert lines(caplog, "config") == [
            "[truncation-guard] WARN config step=30 mode=downweight check=raise-limit-to | the "
            f"checkpoint was written under a limit that had been raised to 32, and this run goes "
            f"on at {allowed} -> unless that is meant: pass raise_limit_to=32 or more, or set "
            "max_completion_length=32"
        ]


class Gradients:
    """The gradient norm of each optimizer step."""

    def __init__(self, made: Any) -> None:
        made.train()
        self.norms = [
            entry["grad_norm"] for entry in made.state.log_history if "grad_norm" in entry
        ]


@pytest.mark.slow
def test_dr_grpo_keeps_the_scale_of_its_loss(tmp_path: Path) -> None:
    rows = [tiny.T8, tiny.E3, [5, 1], tiny.T8, [7, 1], tiny.T8, tiny.E3, [6, 1]]

    long_model().save_pretrained(tmp_path / "model")  # a reference model needs a path

    def norms(name: str, **options: Any) -> list[float]:
        made = trainer(
            tmp_path / name,
            guard=guard(16, mode="observe") if options.get("raised") else None,
            model=str(tmp_path / "model"),
            max_completion_length=options.get("limit", 8),
            loss_type="dr_grpo",
            beta=0.1,
            max_steps=24,
            learning_rate=0.0,
        )
        tiny.can(made, rows)
        found = Gradients(made).norms
        assert get_limit(made) == (16 if options.get("raised") else options.get("limit", 8))
        return found

    plain, raised, wider = norms("plain"), norms("raised", raised=True), norms("wider", limit=16)
    assert raised == pytest.approx(plain, rel=1e-6)
    assert wider == pytest.approx([norm / 2 for norm in plain], rel=1e-5)


@pytest.mark.slow
def test_dr_grpo_with_tools_keeps_the_scale_of_its_loss_too(tmp_path: Path) -> None:
    """Its divisor is also the budget of the tool loop, which has to follow the raise."""
    chat_model().save_pretrained(tmp_path / "model")
    turns = [*TURNS[:2], [*TURNS[2], [9, 1]], *TURNS[3:]]  # its result has nine words

    def run(name: str, limit: int, callback: Any = None) -> tuple[Any, list[float], list[int]]:
        made = chat_trainer(
            tmp_path / name,
            turns,
            callback,
            guarded=callback is not None,
            model=str(tmp_path / "model"),
            max_completion_length=limit,
            loss_type="dr_grpo",
            beta=0.1,
            max_steps=24,
            learning_rate=0.0,
        )
        outputs = tiny.capture(made)
        found = Gradients(made).norms
        return made, found, [output["completion_mask"].shape[1] for output in outputs]

    _, plain, narrow = run("plain", 12)
    raised_trainer, raised, widths = run("raised", 12, guard(24, mode="observe"))
    _, halved, wide = run("wide", 24)
    assert get_limit(raised_trainer) == raised_trainer.args.max_completion_length == 24
    assert raised_trainer.max_completion_length == 12
    assert (set(narrow), widths[-1], set(wide)) == ({12}, 20, {20})
    # Before the raise the batches are those of the run without a guard, afterwards those of the
    # run at 24 tokens, whose loss is divided by twice as much.
    before = widths.index(20)
    assert raised[:before] == pytest.approx(plain[:before], rel=1e-6)
    assert raised[before:] == pytest.approx([2 * norm for norm in halved[before:]], rel=1e-5)


def test_a_raised_tool_budget_stays_where_the_guard_is_removed(tmp_path: Path) -> None:
    made = chat_trainer(
        tmp_path,
        [[[first, CALL, LONG, END, 1], [9, 1]] for first in range(5, 13)],
        TruncationGuardCallback(mode="observe"),
        loss_type="dr_grpo",
        max_steps=4,
    )
    raise_limit(made, 24)
    made.remove_callback(TruncationGuardCallback)
    outputs = tiny.capture(made)
    made.train()
    assert {output["completion_mask"].shape[1] for output in outputs} == {18}
    assert made.max_completion_length == 12
    set_max_completion_length(made, 20)
    assert get_limit(made) == made.max_completion_length == 20


@pytest.mark.slow
@pytest.mark.parametrize("where", ["train", "eval", "eval by name", "eval, a stream"])
def test_the_longest_prompt_of_the_data_keeps_its_room(where: str, tmp_path: Path) -> None:
    """It comes last: what was seen before says nothing of it."""
    words = [*["w3"] * 255, " ".join(["w4"] * 40)]
    data = Dataset.from_dict({"prompt": words})
    short = data.select(range(255))
    evaluation = {
        "train": Dataset.from_dict({"question": ["a data set without prompts"]}),
        "eval": data,
        "eval by name": {"a": short, "b": data},
        "eval, a stream": data.select(range(248, 256)).to_iterable_dataset(),
    }[where]
    is_streamed = where == "eval, a stream"  # so that only an evaluation shows them
    if is_streamed:
        versions.require("1.9", "data sets that are streams")
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 5,
        "accelerator_config": {"split_batches": False},
    }
    args = tiny.config(
        tmp_path, max_completion_length=16, max_steps=20, **(settings if is_streamed else {})
    )
    made = tiny.trainer(
        args,
        finished,
        [guard(60)],  # the window has 64
        train_dataset=data if where == "train" else short,
        eval_dataset=evaluation,
    )
    made.generation_config.max_new_tokens = 16
    calls = write(made, [[5] * 200])
    made.train()
    assert limits(calls) == [16, 24]  # 64 - 40


@pytest.mark.slow
def test_a_limit_lowered_by_hand_gets_another_chance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the raise before it did says nothing of it."""

    class Lower(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 20:  # the limit went from 16 to 32 before the 18th batch
                set_max_completion_length(made, 12)

    made = trainer(tmp_path, guard=guard(32), max_steps=40)
    made.add_callback(Lower())
    calls = write(made, [[5] * 200, needs(10)])
    made.train()
    assert limits(calls) == [16, 32, 12, 24]
    assert lines(caplog, "not-length") == []


@pytest.mark.slow
@pytest.mark.parametrize("step", [16, 17])
def test_a_raise_that_is_coming_does_not_undo_a_lower_limit(step: int, tmp_path: Path) -> None:
    class Lower(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step:
                set_max_completion_length(made, 12)

    made = trainer(tmp_path, guard=guard(64), max_steps=24)
    made.add_callback(Lower())
    calls = write(made, [[5] * 200])
    made.train()
    assert limits(calls) == [16, 12]


@pytest.mark.slow
def test_where_there_was_no_room_other_data_may_have_it(tmp_path: Path) -> None:
    settings = {"max_completion_length": 16, "max_steps": 20, "learning_rate": 1e-4}
    saving = settings | {"save_strategy": "steps", "save_steps": 20}
    long = Dataset.from_dict({"prompt": [" ".join(["w4"] * 48)] * 64})
    made = tiny.trainer(tiny.config(tmp_path, **saving), finished, [guard(60)], train_dataset=long)
    write(made, [[5] * 200])
    made.train()
    assert get_limit(made) == 16
    args = tiny.config(tmp_path, **(settings | {"max_steps": 40}))
    resumed = tiny.trainer(args, finished, [guard(60)])
    calls = write(resumed, [[5] * 200])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    assert limits(calls) == [16, 32]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copied_trainer_has_rollouts_of_its_own(copied: Any, tmp_path: Path) -> None:
    if copied is copy.deepcopy:
        versions.require("1.16", "trainers that can be copied, with a guard or without")
    made = trainer(tmp_path, guard=guard(), max_steps=2)
    calls = write(made, [needs(10)])
    other = copied(made)
    own = write(other, [needs(10)])
    other.train()
    assert calls == []
    assert len(own) == 2
    assert "truncation_guard/limit" in other.state.log_history[0]


@pytest.mark.slow
def test_the_record_of_a_resume_begins_at_the_raised_limit(tmp_path: Path) -> None:
    settings = {"max_steps": 30, "save_strategy": "steps", "save_steps": 30}
    made = trainer(tmp_path, guard=guard(), **settings)
    write(made, [needs(40)])
    made.train()
    resumed = trainer(tmp_path, guard=guard(), **(settings | {"max_steps": 32}))
    write(resumed, [needs(40)])
    resumed.train(resume_from_checkpoint=True)
    assert read_record(tmp_path / FILE_NAME)[-1].start["limit"] == 32


@pytest.mark.slow
def test_a_checkpoints_limit_leaves_room_for_the_prompts_of_the_new_data(tmp_path: Path) -> None:
    settings = {"max_completion_length": 16, "max_steps": 20, "learning_rate": 1e-4}
    saving = settings | {"save_strategy": "steps", "save_steps": 20}
    made = tiny.trainer(tiny.config(tmp_path, **saving), finished, [guard(60)])
    write(made, [[5] * 200])
    made.train()
    assert get_limit(made) == 32
    data = Dataset.from_dict({"prompt": ["w3", " ".join(["w4"] * 36)] * 64})
    args = tiny.config(tmp_path, **(settings | {"max_steps": 21}))
    resumed = tiny.trainer(args, finished, [guard(60)], train_dataset=data)
    calls = write(resumed, [[5] * 200])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    assert limits(calls) == [28]  # 64 - 36


def test_a_raise_lowers_nothing(tmp_path: Path) -> None:
    made = trainer(tmp_path, max_completion_length=300, generation_kwargs={"max_new_tokens": 10})
    raise_limit(made, 20)
    assert get_limit(made) == made.args.generation_kwargs["max_new_tokens"] == 20
    assert made.max_completion_length == made.args.max_completion_length == 300


@pytest.mark.slow
def test_a_reward_that_cannot_be_looked_into_does_not_stand_in_the_way(tmp_path: Path) -> None:
    def outer() -> Any:
        def reward(completion_ids: Any, **kwargs: Any) -> list[float]:
            if False:
                print(never)  # an empty cell, which raises when it is read  # noqa: T201
            return finished(completion_ids)

        if False:
            never = 0
        return reward

    args = tiny.config(tmp_path, max_completion_length=16, max_steps=40, learning_rate=1e-4)
    made = tiny.trainer(args, outer(), [guard(48)])
    calls = write(made, [needs(40)])
    made.train()
    assert limits(calls) == [16, 32, 48]


def test_a_punishment_that_no_longer_fits_is_said_after_the_raise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = tiny.config(tmp_path, max_completion_length=16, max_steps=24, learning_rate=1e-4)
    made = tiny.trainer(args, tiny.SoftPunishment(16, 8), [guard(48)])
    write(made, [needs(40)])
    made.train()
    (line,) = lines(caplog, "config")
    assert " check=soft-punishment " in line
    assert "below max_completion_length=32" in line


@pytest.mark.parametrize(("ceiling", "least"), [(128, None), (129, 160), (159, 160), (160, None)])
def test_a_ceiling_too_close_to_the_limit_is_said_to_be_of_no_use(
    ceiling: int, least: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = trainer(tmp_path, guard=guard(ceiling), max_completion_length=128, max_steps=1)
    write(made, [needs(10)])
    made.train()
    expected = (
        []
        if least is None
        else [
            "[truncation-guard] WARN config step=0 mode=downweight check=raise-limit-to | "
            f"raise_limit_to={ceiling} is less than a quarter above the limit, 128, and a smaller "
            f"raise is never made -> pass at least {least}"
        ]
    )
    assert lines(caplog, "config") == expected


@pytest.mark.parametrize("limit", [8, 127])
def test_a_ceiling_below_the_limit_is_refused(limit: int, tmp_path: Path) -> None:
    made = trainer(tmp_path, guard=guard(limit), max_completion_length=128)
    with pytest.raises(ValueError, match="raise_limit_to") as error:
        made.train()
    assert str(error.value) == (
        f"`raise_limit_to` must be above the limit, 128, got {limit}. Pass a larger number of "
        "tokens, or None to leave the limit alone."
    )


@pytest.mark.slow
def test_later_trainings_go_on_close_to_the_ceiling(tmp_path: Path) -> None:
    made = trainer(tmp_path, guard=guard(32), max_steps=24)
    calls = write(made, [needs(40)])
    for _ in range(3):
        made.train()
    assert limits(calls) == [16, 32]


def test_a_limit_of_none_cannot_be_raised(tmp_path: Path) -> None:
    made = trainer(tmp_path, guard=guard(32), max_completion_length=None)
    made.generation_config.max_length = 40
    with pytest.raises(ValueError, match="raise_limit_to") as error:
        made.train()
    assert str(error.value) == (
        "`raise_limit_to` needs a limit to begin with, and max_completion_length is None. Set it, "
        "or pass None to leave it alone."
    )


def test_a_ceiling_that_fills_the_context_window_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path, guard=guard(512))
    with pytest.raises(ValueError, match="raise_limit_to") as error:
        made.train()
    assert str(error.value) == (
        "`raise_limit_to` must leave room for a prompt in the context window of 512 tokens, got "
        "512. Pass at most 512 less the longest prompt."
    )


class LowersTo12(TrainerCallback):
    def __init__(self, after: int) -> None:
        self._after = after
        self.made: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._after:
            set_max_completion_length(self.made, 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "seen"),
    [(20, [16, 32, 12]), (16, [16, 12])],
    ids=["after the raise", "between decision and raise"],
)
def test_a_limit_that_was_lowered_by_hand_does_not_come_back_with_the_checkpoint(
    after: int, seen: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 24}
    lowers = LowersTo12(after)
    made = lowers.made = trainer(tmp_path, guard=guard(), **(settings | {"max_steps": 24}))
    made.add_callback(lowers)
    calls = write(made, [[5] * 200])
    made.train()
    assert limits(calls) == seen
    resumed = trainer(
        tmp_path, guard=guard(), max_completion_length=12, **(settings | {"max_steps": 26})
    )
    calls = write(resumed, [[5] * 200])
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-24"))
    assert limits(calls) == [12]
    without = TruncationGuardCallback(window=WINDOW)
    other = trainer(
        tmp_path, guard=without, max_completion_length=12, **(settings | {"max_steps": 26})
    )
    other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-24"))
    assert lines(caplog, "config") == []


@pytest.mark.slow
def test_a_second_training_knows_that_the_limit_was_raised(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    made = trainer(tmp_path / "first", guard=guard(), **(settings | {"max_steps": 20}))
    write(made, [[5] * 200])
    made.train()
    made.args.output_dir, made.args.max_steps = str(tmp_path / "second"), 4
    calls = write(made, [[5] * 200])
    made.train()
    assert limits(calls) == [32]
    resumed = trainer(tmp_path / "second", guard=guard(), **(settings | {"max_steps": 6}))
    calls = write(resumed, [[5] * 200])
    resumed.train(resume_from_checkpoint=True)
    assert limits(calls) == [32]
