"""How each completion of a real trainer ended, and what its log says of it (cases 1, 2, 10, 11)."""

import json
import logging
import statistics

import pytest
import torch
from datasets import Dataset
from support import tiny, versions
from support.tool_calls import CALL, END, SHORT, TURNS, Environment, chat_trainer

from truncation_guard import TruncationGuardCallback

ALGORITHMS = ("grpo", "rloo")


@pytest.fixture(autouse=True)
def _experimental(monkeypatch, caplog):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    caplog.set_level(logging.WARNING, "truncation_guard")


class Sampled:
    """A reward that remembers the tokens."""

    __name__ = "sampled"

    def __init__(self):
        self.rows = []

    def __call__(self, completion_ids, **kwargs):
        self.rows += [list(ids) for ids in completion_ids]
        return [float(number % 3) for number, _ in enumerate(completion_ids)]


def train(tmp_path, rollouts=None, algorithm="grpo", reward=None, callback=None, given=(), **args):
    """The trainer after training."""
    trainer = tiny.trainer(
        tiny.config(tmp_path, algorithm, **args),
        reward or Sampled(),
        [callback or TruncationGuardCallback()],
        rollouts=rollouts,
        **dict(given),
    )
    trainer.train()
    return trainer


def metrics(trainer, number=0):
    prefix = "truncation_guard/"
    entry = trainer.state.log_history[number]
    return {k.removeprefix(prefix): v for k, v in entry.items() if k.startswith(prefix)}


def recorded(tmp_path):
    lines = (tmp_path / "truncation_guard.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == "batch"]


def lengths(entry):
    found = entry["lengths"]
    assert found["bin_width"] == 1
    return {tuple(pair) for pair in found["ended"]}, {tuple(pair) for pair in found["cut"]}


def warnings(caplog):
    """Code of each WARN line, and the lines."""
    lines = [r.getMessage() for r in caplog.records if r.name == "truncation_guard"]
    lines = [line for line in lines if " WARN " in line]
    return [line.split(" WARN ")[1].split()[0] for line in lines], "\n".join(lines)


def shares(found):
    names = ("truncated_share", "cause/limit", "cause/context", "cause/tool", "stopped_share")
    return [found[name] for name in names]


def test_with_a_limit_the_context_window_cuts_nothing(tmp_path):
    """Transformers goes on past it: the stop string ended these, next to a prompt of 58 of 64."""
    words = [" ".join(["w4"] * 58), *["w5"] * 63]
    trainer = train(
        tmp_path,
        [[5, 6, 7, 8, 9, 10, 9]],
        given={"train_dataset": Dataset.from_dict({"prompt": words})},
        max_completion_length=16,
        generation_kwargs={"stop_strings": ["w9"]},
    )
    assert shares(metrics(trainer)) == [0.0, 0.0, 0.0, 0.0, 1.0]


# Cases 1 and 2: stop tokens and the edge of the limit.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_edge_of_the_limit(algorithm, tmp_path):
    """Case 1: eos exactly at the limit, one token too many, a pad that was sampled at the limit."""
    rows = [[5, 6, 7, 8, 9, 10, 11, 1], tiny.T8, [5, 6, 7, 8, 9, 10, 11, 0], tiny.E3]
    trainer = train(tmp_path, rows, algorithm, per_device_train_batch_size=4)
    assert shares(metrics(trainer)) == [0.5, 0.5, 0.0, 0.0, 0.0]
    assert lengths(recorded(tmp_path)[0]) == ({(3, 1), (8, 1)}, {(8, 2)})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("eos_token_id", "row", "expected", "code"),
    [
        pytest.param(
            *([1, 2], [5, 6, 2], [0.0, 0.0, 0.0, 0.0, 0.0], []),
            marks=versions.since("1.14.2", "stop tokens besides the tokenizer's"),
        ),
        (1, [5, 6, 2], [0.0, 0.0, 0.0, 0.0, 1.0], ["stop-tokens"]),
        (1, [5, 6, 2, 9, 9, 9, 9, 9], [1.0, 1.0, 0.0, 0.0, 0.0], ["stop-tokens"]),
    ],
)
def test_stop_tokens(eos_token_id, row, expected, code, algorithm, tmp_path, caplog):
    """Case 2."""
    trainer = train(
        tmp_path,
        [row],
        algorithm,
        given={"model": tiny.model(eos_token_id=eos_token_id)},
        per_device_train_batch_size=4,
    )
    assert shares(metrics(trainer)) == expected
    codes, text = warnings(caplog)
    assert codes == code
    assert ("token 2 (<eot>), which looks like an end of turn" in text) == bool(code)
    assert "raise max_completion_length" not in text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_unknown_stop_token_that_looks_like_nothing(algorithm, tmp_path, caplog):
    train(tmp_path, [[5, 6, 9]], algorithm)
    codes, text = warnings(caplog)
    assert codes == ["stop-tokens"]
    assert "8 completions ended below every limit on none of the stop tokens (1)" in text
    assert "max_completion_length=" not in text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_stop_tokens_of_generation_kwargs(algorithm, tmp_path):
    """Really sampled: generation stops at 1 and 2 and pads to the longest; TRL only knows 1.

    So TRL hands rows on that end on pads; what the model wrote is what comes before them.
    """
    reward = Sampled()
    trainer = train(
        tmp_path,
        None,
        algorithm,
        reward,
        generation_kwargs={"eos_token_id": [1, 2], "suppress_tokens": [0]},
        per_device_train_batch_size=64,
    )
    rows = [[token for token in row if token != 0] for row in reward.rows]
    assert any(row[-1] == 0 for row in reward.rows)
    assert {row[-1] for row in rows if len(row) < tiny.LIMIT} == {1, 2}
    truncated = [row for row in rows if row[-1] not in (1, 2)]
    assert 0 < len(truncated) < len(rows)
    share = len(truncated) / len(rows)
    assert shares(metrics(trainer)) == pytest.approx([share, share, 0.0, 0.0, 0.0])
    ended, cut = lengths(recorded(tmp_path)[0])
    assert sum(n * number for n, number in ended | cut) == sum(map(len, rows))


def test_a_stop_string_is_asked_for(tmp_path, caplog):
    trainer = train(tmp_path, [[5, 6, 9]], generation_kwargs={"stop_strings": ["w9"]})
    assert shares(metrics(trainer)) == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert warnings(caplog)[0] == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_pad_token_that_is_the_eos_token(algorithm, tmp_path):
    """Really sampled: TRL ends a row at its first eos, so no pad is left behind it."""
    reward = Sampled()
    trainer = train(
        tmp_path,
        None,
        algorithm,
        reward,
        given={"processing_class": tiny.tokenizer(pad_token="<eos>")},
        per_device_train_batch_size=64,
    )
    truncated = [row for row in reward.rows if row[-1] != 1]
    assert {len(row) for row in truncated} == {tiny.LIMIT}
    assert 0 < len(truncated) < 64
    share = len(truncated) / 64
    assert shares(metrics(trainer)) == pytest.approx([share, share, 0.0, 0.0, 0.0])


# The limit that generation obeys.

WITHOUT_A_LIMIT = pytest.mark.filterwarnings(
    "ignore:Using the model-agnostic default `max_length`:UserWarning:transformers"
)


@WITHOUT_A_LIMIT
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("args", "limit"),
    [
        ({"max_completion_length": None}, 20),
        ({"generation_kwargs": {"max_new_tokens": 5}}, 5),
        (
            {
                "use_transformers_continuous_batching": True,
                "transformers_continuous_batching_config": {"num_blocks": 8},
            },
            8,
        ),
    ],
    ids=["no limit", "generation_kwargs", "continuous batching"],
)
def test_the_live_limit(algorithm, args, limit, tmp_path):
    """Really sampled. Without any limit the transformers backend stops at 20 new tokens."""
    reward = Sampled()
    prompts = Dataset.from_dict({"prompt": ["w3 w4 w5 w6", "w7"] * 8})
    trainer = train(
        tmp_path,
        None,
        algorithm,
        reward,
        given={"train_dataset": prompts},
        per_device_train_batch_size=32,
        **args,
    )
    truncated = [row for row in reward.rows if row[-1] != 1]
    assert {len(row) for row in truncated} == {limit}
    assert 0 < len(truncated) < 32
    found = metrics(trainer)
    assert found["limit"] == limit
    share = len(truncated) / 32
    assert shares(found) == pytest.approx([share, share, 0.0, 0.0, 0.0])


@WITHOUT_A_LIMIT
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_context_window_cuts(algorithm, tmp_path, caplog):
    """Really sampled, without a limit: transformers then stops at the window of 64 tokens."""
    reward = Sampled()
    words = [f"w{3 + number % 12}" for number in range(56)]
    trainer = train(
        tmp_path,
        None,
        algorithm,
        reward,
        given={"train_dataset": Dataset.from_dict({"prompt": [" ".join(words), "w3"] * 8})},
        max_completion_length=None,
        generation_kwargs={"suppress_tokens": [0, 2]},
        per_device_train_batch_size=32,
    )
    truncated = [row for row in reward.rows if row[-1] != 1]
    assert {len(row) for row in truncated} == {64 - 56}
    share = len(truncated) / 32
    assert shares(metrics(trainer)) == pytest.approx([share, 0.0, share, 0.0, 0.0])
    codes, text = warnings(caplog)
    assert codes == ["config", "context"]
    assert "context window of 64 tokens" in text
    assert "raise max_completion_length" not in text


# Case 11: the tool loop.


def test_the_tool_loop(tmp_path):
    trainer = chat_trainer(tmp_path, TURNS, TruncationGuardCallback(mode="exclude"))
    outputs = tiny.capture(trainer)
    trainer.train()
    assert shares(metrics(trainer)) == [5 / 8, 2 / 8, 0.0, 3 / 8, 0.0]
    ended, cut = lengths(recorded(tmp_path)[0])
    assert ended == {(10, 1), (2, 1), (9, 1)}
    # Rows 2, 4, 6 and 7 fill the limit; row 3 keeps its call alone, for want of room.
    assert cut == {(12, 5)}
    # The tokens that the model wrote in the rows that terminated.
    assert outputs[0]["num_items_in_batch"].item() == 7 + 2 + 6
    in_loss = (outputs[0]["completion_mask"] * outputs[0]["tool_mask"]).sum(1).tolist()
    assert in_loss == [7, 0, 0, 0, 2, 0, 0, 6]
    survivors = [outputs[0]["advantages"][row].item() for row in (4, 7)]
    # Their group of four has them alone: rewards 1 and 1 of 0, 1, 2, 0, 1, 2, 0, 1.
    assert survivors == [0.0, 0.0]


def test_observe_changes_nothing_in_the_tool_loop(tmp_path):
    outputs, weights = [], []
    for guarded in (True, False):
        callback = TruncationGuardCallback(mode="observe")
        trainer = chat_trainer(tmp_path, TURNS, callback, guarded=guarded, max_steps=2)
        outputs.append(tiny.capture(trainer))
        trainer.train()
        weights.append(list(trainer.model.state_dict().values()))
    assert [entry["truncated"] for entry in recorded(tmp_path)] == [5, 5]
    assert all(map(torch.equal, *weights))
    for one, other in zip(*outputs, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_when_the_rounds_of_tool_calls_run_out_a_longer_limit_is_not_advised(tmp_path, caplog):
    turns = [[[token, CALL, SHORT, END, 1], [CALL, SHORT, END, 1]] for token in (5, 6, 7, 8)]
    trainer = chat_trainer(tmp_path, turns, max_completion_length=32)
    trainer.train()
    assert shares(metrics(trainer)) == [1.0, 0.0, 0.0, 1.0, 0.0]
    codes, text = warnings(caplog)
    assert codes == ["all-truncated"]
    assert "raise max_tool_calling_iterations" in text
    assert "raise max_completion_length" not in text


def test_a_limit_of_each_turn_is_none_of_all_turns_together(tmp_path, caplog):
    """Ten tokens in two turns, of which each may have eight."""
    turns = [[[token, CALL, SHORT, END, 1], [9, 1]] for token in (5, 6, 7, 8)]
    settings = {"max_completion_length": 32, "generation_kwargs": {"max_new_tokens": 8}}
    trainer = chat_trainer(tmp_path, turns, **settings)
    trainer.train()
    assert shares(metrics(trainer)) == [0.0] * 5
    assert warnings(caplog)[0] == []


def test_a_turn_that_is_cut_is_cut_by_the_limit_of_a_turn(tmp_path, caplog):
    turns = [[[token, CALL, SHORT, END, 1], [9] * 8] for token in (5, 6, 7, 8)]
    settings = {"max_completion_length": 32, "generation_kwargs": {"max_new_tokens": 8}}
    trainer = chat_trainer(tmp_path, turns, **settings)
    trainer.train()
    assert shares(metrics(trainer)) == [1.0, 1.0, 0.0, 0.0, 0.0]
    codes, text = warnings(caplog)
    assert codes == ["all-truncated"]
    assert "raise generation_kwargs['max_new_tokens'] (next try: " in text


def test_a_second_round_of_tool_calls_is_answered(tmp_path):
    turns = [
        [[token, CALL, SHORT, END, 1], [CALL, SHORT, END, 1], [9, 1]] for token in (5, 6, 7, 8)
    ]
    trainer = chat_trainer(tmp_path, turns, max_completion_length=32, max_tool_calling_iterations=2)
    trainer.train()
    assert shares(metrics(trainer)) == [0.0, 0.0, 0.0, 0.0, 0.0]
    assert lengths(recorded(tmp_path)[0]) == ({(5 + 3 + 4 + 3 + 2, 4)}, set())


def test_an_environment(tmp_path, caplog):
    turns = [TURNS[0], TURNS[1], TURNS[3], [[9, 10]]]
    trainer = chat_trainer(tmp_path, turns, given={"environment_factory": Environment})
    trainer.train()
    # The last row ends early, which an environment may ask for.
    assert shares(metrics(trainer)) == [0.5, 0.25, 0.0, 0.25, 0.25]
    assert "stop-tokens" not in warnings(caplog)[0]


# Rollout functions.


def rollout_trainer(tmp_path, rows, masks=None, **args):
    def rollout(prompts, trainer):
        output = {"prompt_ids": [[3]] * len(rows), "completion_ids": rows, "logprobs": None}
        return output if masks is None else output | {"env_mask": masks}

    return train(
        tmp_path,
        given={"rollout_func": rollout},
        per_device_train_batch_size=len(rows),
        **args,
    )


def test_tokens_of_an_environment_count_towards_the_limit_but_end_no_completion(tmp_path, caplog):
    rows = [
        [5, 6, 1, 9, 9],  # the environment has the last word, after the stop token
        [5, 9, 9, 9, 9, 9, 9, 7],  # the model writes the last token at the limit
        [5, 6, 7, 1, 9, 9, 6, 8],  # a stop token inside
        [5, 6, 7],  # ends early, which a rollout function may do
    ]
    masks = [
        [1, 1, 1, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 1],
        [1, 1, 1, 1, 0, 0, 1, 1],
        [1, 1, 1],
    ]
    trainer = rollout_trainer(tmp_path, rows, masks)
    assert shares(metrics(trainer)) == [0.5, 0.5, 0.0, 0.0, 0.25]
    assert "stop-tokens" not in warnings(caplog)[0]


def test_a_row_that_an_environment_fills_up_to_the_limit_is_truncated(tmp_path):
    """Its length reaches the limit, and the model never got to its stop token."""
    rows = [[5, 6, 7, 9, 9, 9, 9, 9], tiny.E3]
    masks = [[1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1]]
    trainer = rollout_trainer(tmp_path, rows, masks, num_generations=2)
    assert shares(metrics(trainer)) == [0.5, 0.5, 0.0, 0.0, 0.0]


def test_tokens_of_an_environment_behind_the_stop_token_are_part_of_the_length(tmp_path, caplog):
    """The limit counts every token of a completion, so its length does as well."""
    rows = [[5, 6, 1, 9, 9], [5, 6, 1, 9, 9, 9, 9, 9, 9]]
    masks = [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0, 0]]
    trainer = rollout_trainer(tmp_path, rows, masks, num_generations=2)
    assert shares(metrics(trainer)) == [0.0, 0.0, 0.0, 0.0, 0.0]
    assert lengths(recorded(tmp_path)[0]) == ({(5, 1), (9, 1)}, set())
    assert warnings(caplog)[0] == ["limit-ignored"]


def test_a_rollout_function_that_ignores_the_limit(tmp_path, caplog):
    trainer = rollout_trainer(tmp_path, [[*tiny.T8, 5, 6], tiny.E3, tiny.E3, [*tiny.T8, 1]])
    assert shares(metrics(trainer)) == [0.25, 0.25, 0.0, 0.0, 0.0]
    codes, text = warnings(caplog)
    assert codes == ["limit-ignored"]
    assert "max_completion_length=8 is not obeyed" in text
    assert "2 of 4 are longer, up to 10 tokens" in text


# Metrics.


def grpo(rewards):
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


def rloo(rewards):
    total, others = sum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


@pytest.mark.parametrize(("algorithm", "advantages"), [("grpo", grpo), ("rloo", rloo)])
@pytest.mark.parametrize("mode", ["observe", "downweight", "exclude", "penalize"])
def test_every_metric_of_one_batch(mode, algorithm, advantages, tmp_path):
    """Three groups: one with a truncated and a stopped row, one truncated as a whole, one whole."""
    stopped = [5, 6]
    rollouts = [
        *(tiny.E3, tiny.T8, tiny.E3, stopped),
        *(tiny.T8, tiny.T8, tiny.T8, tiny.T8),
        *(tiny.E3, tiny.E3, tiny.E3, tiny.E3),
    ]
    first = [1.0, 0.5, 0.0, 0.25, 1.0, 0.0, 0.0, -1.0, 0.0, 1.0, 1.0, 1.0]
    second = [0.0, 1.0, None, 1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    total = [a + 0.5 * (b or 0.0) for a, b in zip(first, second, strict=True)]
    cut = [row is tiny.T8 for row in rollouts]
    whole = [row is tiny.E3 for row in rollouts]
    trainer = train(
        tmp_path,
        rollouts,
        algorithm,
        reward=[tiny.scripted(first), tiny.scripted(second)],
        callback=TruncationGuardCallback(mode=mode, truncated_weight=0.0, truncated_reward=0.25),
        per_device_train_batch_size=12,
        reward_weights=[1.0, 0.5],
    )
    in_baseline = {
        "observe": total[:4],
        "downweight": total[:4],
        "exclude": [total[0], total[2], total[3]],
        # min(0.5, 0.25) + 0.5 * min(1, 0.25) for the truncated row
        "penalize": [total[0], 0.375, total[2], total[3]],
    }[mode]
    found = advantages(in_baseline)
    # What is excluded sums to 0 without the row, whatever the factor of RLOO's 7 kept rows of 12.
    survivors = 0.0 if mode == "exclude" else found[0] + found[2] + found[3]
    # With `penalize` the second group is [0.25, 0.125, 0, -1]: it has a signal too.
    silent = {"observe": 0, "downweight": 1, "exclude": 1, "penalize": 0}[mode]
    expected = {
        "truncated_share": 5 / 12,
        "cause/limit": 5 / 12,
        "cause/context": 0.0,
        "cause/tool": 0.0,
        "stopped_share": 1 / 12,
        "groups_truncated": 2 / 3,
        "groups_all_truncated": 1 / 3,
        "groups_without_signal": silent / 3,
        # In the second group nobody survives.
        "survivor_advantage_sum": survivors / 2,
        "reward_terminated": statistics.fmean(r for r, w in zip(total, whole, strict=True) if w),
        "reward_truncated": statistics.fmean(r for r, c in zip(total, cut, strict=True) if c),
        "reward": statistics.fmean(total),
        "limit": 8.0,
    }
    assert metrics(trainer) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    entry = recorded(tmp_path)[0]
    assert (entry["completions"], entry["terminated"]) == (12, 6)
    assert (entry["truncated"], entry["stopped"]) == (5, 1)
    assert (entry["groups"], entry["groups_truncated"], entry["groups_all_truncated"]) == (3, 2, 1)
    assert entry["groups_one_survivor"] == 0
    assert entry["groups_without_signal"] == silent
    assert lengths(entry) == ({(2, 1), (3, 6)}, {(8, 5)})


CONSTANT_IN_THE_SECOND = [1.0, 0.0, 0.25, 0.5, 0.7, 0.7, 0.7, 0.7]


@pytest.mark.parametrize(
    ("algorithm", "rewards", "options", "silent"),
    [
        (
            "grpo",
            [CONSTANT_IN_THE_SECOND, [0.0, 1.0, 1.0, 1.0, 0.3, 0.3, 0.3, 0.3]],
            {"multi_objective_aggregation": "normalize_then_sum"},
            0.5,
        ),
        (  # the same in sum, and each of the functions has something to say
            "grpo",
            [CONSTANT_IN_THE_SECOND, [0.0] * 4 + [0.3, 0.4, 0.5, 0.6], [0.0] * 4 + [6, 5, 4, 3.0]],
            {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1, 10, 1]},
            0.0,
        ),
        ("rloo", [CONSTANT_IN_THE_SECOND], {"normalize_advantages": True}, 0.5),
        ("rloo", [[0.3, 0.2, 0.5, 0.7] * 2], {"reward_clip_range": (-0.1, 0.1)}, 1.0),
        ("rloo", [CONSTANT_IN_THE_SECOND], {"reward_clip_range": (-0.1, 0.3)}, 0.5),
    ],
)
def test_groups_whose_advantages_are_rounding_alone_have_no_signal(
    algorithm, rewards, options, silent, tmp_path
):
    functions = [tiny.scripted(values) for values in rewards]
    for number, function in enumerate(functions):
        function.__name__ = f"reward{number}"
    callback = TruncationGuardCallback(mode="observe")
    trainer = train(tmp_path, [tiny.E3], algorithm, functions, callback, **options)
    assert metrics(trainer)["groups_without_signal"] == silent


def test_metrics_of_what_was_not_there_are_not_logged(tmp_path):
    found = metrics(train(tmp_path, [tiny.T8]))
    assert "reward_terminated" not in found
    assert found["reward_truncated"] == found["reward"]
    found = metrics(train(tmp_path, [tiny.E3]))
    assert "reward_truncated" not in found
    assert "survivor_advantage_sum" not in found
    assert found["reward_terminated"] == found["reward"]


def test_metrics_are_averaged_over_the_batches_of_a_log_window(tmp_path):
    rollouts = [*[tiny.T8] * 8, *[tiny.E3] * 6, *[tiny.T8] * 2]
    trainer = train(tmp_path, rollouts, max_steps=2, logging_steps=2)
    assert metrics(trainer)["truncated_share"] == pytest.approx((1.0 + 0.25) / 2)
    assert metrics(trainer)["groups_truncated"] == pytest.approx((1.0 + 0.5) / 2)
    assert [entry["truncated"] for entry in recorded(tmp_path)] == [8, 2]
