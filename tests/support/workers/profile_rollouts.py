"""For `processes/test_profile_rollouts.py`: profiles, and trainings after them."""

from typing import Any

import torch
from datasets import Dataset, IterableDataset
from support import canned, tiny
from support.distributed import COLLECTIVE_TIMEOUT, folder_of, scenario

from truncation_guard.profiling.rollouts.profile_rollouts import profile_rollouts

FOLDER = folder_of("profile_rollouts")


class Sampled:
    """A reward that depends on the tokens, and remembers them."""

    __name__ = "sampled"

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def __call__(self, completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        self.rows += [list(ids) for ids in completion_ids]
        return [sum(ids) % 7 / 4 - 0.5 for ids in completion_ids]


def trainer(rollouts: Any = None, data: Any = None, **settings: Any) -> Any:
    """Six completions on each process, in groups of four that straddle."""
    args = {"per_device_train_batch_size": 6, "ddp_timeout": COLLECTIVE_TIMEOUT, "max_steps": 2}
    return tiny.trainer(
        tiny.config(FOLDER, **(args | settings)),
        Sampled(),
        rollouts=rollouts,
        train_dataset=data or tiny.prompts(64),
    )


def profile(made: Any, **arguments: Any) -> dict[str, Any]:
    """As JSON values, with the sizes of this process's batches."""
    batches: list[int] = []
    generate = made._generate_single_turn

    def generated(prompt_ids: Any, *args: Any) -> Any:
        batches.append(len(prompt_ids))
        return generate(prompt_ids, *args)

    made._generate_single_turn = generated
    settings = {"max_completion_length": 24, "num_prompts": 5, "progress": True}
    found = profile_rollouts(made, **(settings | arguments))
    made._generate_single_turn = generate
    ended, cut = found.sample.histograms
    return {
        "ended": sorted(ended.items()),
        "cut": sorted(cut.items()),
        "notes": found.notes,
        "longest_prompt": found.longest_prompt,
        "batches": batches,
    }


def canned_profile(**arguments: Any) -> dict[str, Any]:
    """Each completion has a length of its own: 2, 3, .. 24, by its number."""
    rollouts = [[5] * n + [tiny.EOS] for n in range(1, 24)]
    return profile(trainer(rollouts), **arguments)


def training(profiles: bool) -> dict[str, Any]:
    made = trainer()
    found = [profile(made)] if profiles else []
    made.train()
    if profiles:
        found.append(profile(made, seed=1))
    made.train()
    timed = ("_runtime", "_per_second", "step_time")
    log = [
        {k: v for k, v in entry.items() if not k.endswith(timed)}
        for entry in made.state.log_history
    ]
    weights = torch.cat([p.flatten() for p in made.model.state_dict().values()])
    return {
        "log": log,
        "weights": weights.tolist(),
        "rows": made.reward_funcs[0].rows,
        "profiles": found,
    }


def error(work: Any) -> str | None:
    try:
        work()
    except (RuntimeError, ValueError) as raised:
        return f"{type(raised).__name__}: {raised}"
    return None


def unreadable() -> str | None:
    """The data set of the second process holds something else."""
    data = Dataset.from_dict({"prompt": ["w3"] * 8})
    made = trainer(data=data)
    if canned.RANK == 1:
        made.train_dataset = data.rename_column("prompt", "question")
        made.train_dataset = made.train_dataset.with_transform(broken)
    return error(lambda: profile(made))


def broken(batch: Any) -> Any:
    raise ValueError("a broken image")


def uneven() -> str | None:
    """The stream of the second process is shorter."""

    def stream() -> Any:
        for number in range(3 if canned.RANK else 5):
            yield {"prompt": f"w{3 + number}"}

    return error(lambda: profile(trainer(data=IterableDataset.from_generator(stream))))


def scenarios() -> None:
    """On two processes."""
    scenario("canned", canned_profile)
    scenario("canned, in threes", lambda: canned_profile(num_generations=3))
    scenario("canned, in fives", lambda: canned_profile(num_generations=5, num_prompts=3))
    scenario("training", lambda: training(False))
    scenario("profile and training", lambda: training(True))
    scenario("unreadable", unreadable)
    scenario("uneven", uneven)
    scenario("after errors", canned_profile)
