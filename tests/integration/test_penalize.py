"""`penalize`: the rewards of truncated rows are bounded from above before the baseline.

Also: in every mode TRL's completions table shows the advantages that are really used.
"""

import math
import statistics

import pytest
import torch
from datasets import Dataset
from pyarrow.parquet import read_table
from support import passes, tiny

from truncation_guard import TruncationGuardCallback

MODES = ("observe", "downweight", "exclude", "penalize")


def grpo(rewards):
    """Advantages of one group; None is an unscorable row."""
    scored = [reward for reward in rewards if reward is not None]
    mean, deviation = statistics.fmean(scored), statistics.stdev(scored)
    return [0.0 if r is None else (r - mean) / (deviation + 1e-4) for r in rewards]


def rloo(rewards):
    """Advantages of one group; None is an unscorable row."""
    scored = [reward for reward in rewards if reward is not None]
    total, others = sum(scored), len(scored) - 1
    return [0.0 if r is None else r - (total - r) / others for r in rewards]


def train(tmp_path, algorithm, columns, truncated, bound, **overrides):
    """Advantages, the logged rewards by function and the log of one group."""
    trainer = tiny.trainer(
        tiny.config(
            tmp_path,
            algorithm,
            per_device_train_batch_size=len(truncated),
            num_generations=len(truncated),
            **overrides,
        ),
        [tiny.scripted(column) for column in columns],
        [TruncationGuardCallback(mode="penalize", truncated_reward=bound)],
        rollouts=[tiny.T8 if cut else tiny.E3 for cut in truncated],
    )
    outputs = tiny.capture(trainer)
    trainer.train()
    return outputs[0]["advantages"].tolist(), trainer


@pytest.mark.parametrize(("algorithm", "baseline"), [("grpo", grpo), ("rloo", rloo)])
@pytest.mark.parametrize(
    ("bound", "seen"),
    [
        # Rewards given: 1.0 and -2.0 terminated; 0.75, -0.5, 0.25 truncated.
        (0.0, [1.0, 0.0, -2.0, -0.5, 0.0]),
        (0.5, [1.0, 0.5, -2.0, -0.5, 0.25]),
        (-1.0, [1.0, -1.0, -2.0, -1.0, -1.0]),
        (9.0, [1.0, 0.75, -2.0, -0.5, 0.25]),
    ],
)
def test_a_truncated_row_has_at_most_the_bound(algorithm, baseline, bound, seen, tmp_path):
    found, trainer = train(
        tmp_path, algorithm, [[1.0, 0.75, -2.0, -0.5, 0.25]], [0, 1, 0, 1, 1], bound
    )
    assert found == pytest.approx(baseline(seen), rel=1e-5, abs=1e-6)
    entry = trainer.state.log_history[0]
    # What the reward function gave, whatever was made of it.
    assert entry["truncation_guard/reward"] == pytest.approx(-0.1)
    assert entry["truncation_guard/reward_truncated"] == pytest.approx(0.5 / 3)
    assert entry["truncation_guard/reward_terminated"] == pytest.approx(-0.5)


@pytest.mark.parametrize(("algorithm", "baseline"), [("grpo", grpo), ("rloo", rloo)])
def test_each_function_is_bounded_by_itself_and_may_still_abstain(algorithm, baseline, tmp_path):
    """A bound on the sum would give the third row min(1.5 - 1, 0.25); case 10: NaN stays NaN."""
    first = [1.0, 0.0, 1.5, None, 0.5, None]
    second = [0.5, None, -1.0, 1.0, None, None]
    found, trainer = train(
        tmp_path, algorithm, [first, second], [0, 0, 1, 1, 1, 1], 0.25, reward_weights=[1.0, 2.0]
    )
    seen = [1.0 + 1.0, 0.0, 0.25 - 2.0, 0.5, 0.25, None]
    assert found == pytest.approx(baseline(seen), rel=1e-5, abs=1e-6)
    logged = trainer._logs["rewards"]
    columns = [list(column) for column in logged.values()]
    # Both functions have one name, so TRL's table holds their columns one after the other.
    values = [value for column in columns for value in column][-6:]
    assert [None if math.isnan(v) else v for v in values] == [0.5, None, -1.0, 0.25, None, None]


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_it_trains_like_trl_with_bounded_rewards(aggregation, scale_rewards, tmp_path):
    """The same trainer without a guard, given the bounded rewards, is the oracle."""
    rows = passes.rows(functions=2)
    bounded = [
        type(row)(
            row.prompt,
            row.tokens,
            tuple(v if v is None or row.kept else min(v, 0.1) for v in row.rewards),
            row.kept,
        )
        for row in rows
    ]
    assert bounded != rows
    options = {"multi_objective_aggregation": aggregation, "scale_rewards": scale_rewards}
    guard = TruncationGuardCallback(mode="penalize", truncated_reward=0.1, record=False)
    guarded = passes.train(rows, tmp_path, guard=guard, **options)
    plain = passes.train(bounded, tmp_path, **options)
    assert guarded.outputs[0].keys() == plain.outputs[0].keys()
    for name, value in plain.outputs[0].items():
        assert torch.equal(guarded.outputs[0][name], value), name
    assert torch.equal(guarded.gradient, plain.gradient)


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "rloo"])
@pytest.mark.parametrize("mode", MODES)
def test_trls_table_shows_the_advantages_that_are_used(mode, loss_type, tmp_path):
    rows = passes.rows()
    guard = TruncationGuardCallback(
        mode=mode, truncated_weight=0.3, truncated_reward=0.1, record=False
    )
    seen = passes.train(rows, tmp_path, loss_type, guard=guard, max_steps=4)
    used = seen.outputs[1]["advantages"].tolist()
    table = seen.trainer._logs["advantages"]
    assert list(table) == used
    assert table.maxlen == len(rows)
    plain = passes.train(rows, tmp_path, loss_type).outputs[0]["advantages"].tolist()
    assert (used == plain) == (mode == "observe")


def test_the_completions_on_disk_show_the_advantages_that_are_used(tmp_path):
    guard = TruncationGuardCallback(mode="exclude")
    args = tiny.config(tmp_path, per_device_train_batch_size=4, log_completions=True)
    rollouts = [tiny.E3, tiny.E3, tiny.T8, tiny.T8]
    trainer = tiny.trainer(args, tiny.scripted([1.0, 0.0, 0.0, 0.0]), [guard], rollouts)
    trainer.train()
    table = read_table(tmp_path / "completions" / "completions_00001.parquet")
    assert table["advantage"].to_pylist() == pytest.approx([0.7070, -0.7070, 0.0, 0.0], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "rloo"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("who", ["a terminated row", "a truncated row", "every row"])
def test_reward_functions_that_abstain(who, mode, loss_type, tmp_path):
    """Case 10: an unscorable row stays out of the baseline in every mode."""
    truncated = [0, 0, 0, 1, 1]
    rewards = [1.0, 0.0, 0.5, -0.5, 1.0]
    silent = {"a terminated row": [1], "a truncated row": [3], "every row": range(5)}[who]
    given = [None if index in silent else r for index, r in enumerate(rewards)]
    settings = {"per_device_train_batch_size": 5, "num_generations": 5}
    if loss_type != "rloo":
        settings["loss_type"] = loss_type
    trainer = tiny.trainer(
        tiny.config(tmp_path, "rloo" if loss_type == "rloo" else "grpo", **settings),
        tiny.scripted(given),
        [TruncationGuardCallback(mode=mode, truncated_weight=0.5, truncated_reward=0.25)],
        rollouts=[tiny.T8 if cut else tiny.E3 for cut in truncated],
        train_dataset=Dataset.from_dict({"prompt": ["w3"] * 8}),
    )
    outputs = tiny.capture(trainer)
    trainer.train()

    in_baseline = list(given)
    for index, value in enumerate(given):
        if truncated[index] and value is not None and mode == "penalize":
            in_baseline[index] = min(value, 0.25)
        elif truncated[index] and mode == "exclude":
            in_baseline[index] = None
    expected = [0.0] * 5
    if who != "every row":
        expected = (rloo if loss_type == "rloo" else grpo)(in_baseline)
    if mode == "downweight":
        expected = [a * 0.5 if cut else a for a, cut in zip(expected, truncated, strict=True)]
    if mode == "exclude" and loss_type != "dapo":
        expected = [a * 5 / 3 for a in expected]
    assert outputs[0]["advantages"].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)

    entry = trainer.state.log_history[0]
    assert math.isfinite(entry["loss"])
    assert math.isfinite(entry["grad_norm"])
    assert entry["truncation_guard/truncated_share"] == pytest.approx(0.4)
    for name, kinds in (
        ("reward", (0, 1)),
        ("reward_terminated", (0,)),
        ("reward_truncated", (1,)),
    ):
        known = [
            r for r, cut in zip(given, truncated, strict=True) if r is not None and cut in kinds
        ]
        if known:
            assert entry[f"truncation_guard/{name}"] == pytest.approx(statistics.fmean(known))
        else:
            assert f"truncation_guard/{name}" not in entry
    assert entry["truncation_guard/groups_without_signal"] == float(who == "every row")
