"""`profile_rollouts` on two processes: one profile for both, and the training that would have been.

Twelve completions make a generation batch, six on each process; groups of four straddle.
"""

from __future__ import annotations

import pytest
from support.distributed import Launch


@pytest.fixture(scope="module")
def two(two_processes: Launch) -> Launch:
    return two_processes.part("profile_rollouts")


@pytest.mark.parametrize(
    ("scenario", "completions", "batches"),
    [
        ("canned", 20, [6, 4]),  # 12 and 8 completions of both
        ("canned, in threes", 15, [6, 3]),  # 12 and 3, and 3 that nobody asked for
        ("canned, in fives", 15, [6, 2]),  # 12 and 3, and 1 that nobody asked for
        ("after errors", 20, [6, 4]),
    ],
)
def test_both_get_the_profile_of_all_completions(
    two: Launch, scenario: str, completions: int, batches: list[int]
) -> None:
    first, second = two.of(scenario)
    assert first == second
    assert first["ended"] == [[length, 1] for length in range(2, 2 + completions)]
    assert first["cut"] == first["notes"] == []
    assert first["longest_prompt"] == 1
    assert first["batches"] == batches


def test_training_is_bit_for_bit_what_it_would_have_been(two: Launch) -> None:
    without, profiled = two.of("training"), two.of("profile and training")
    for before, after in zip(without, profiled, strict=True):
        for part in ("log", "weights", "rows"):
            assert before[part] == after[part], part
    assert profiled[0]["profiles"] == profiled[1]["profiles"]
    found, later = profiled[0]["profiles"]
    assert sum(count for _, count in found["ended"] + found["cut"]) == 20
    assert found != later


def test_only_the_main_process_shows_progress(two: Launch) -> None:
    assert [output.count("Sampling completions") > 0 for output in two.outputs] == [True, False]


def test_prompts_that_one_cannot_read_are_an_error_on_both(two: Launch) -> None:
    assert two.of("unreadable") == [
        "RuntimeError: Another process could not prepare its prompts: its log says why.",
        "ValueError: a broken image",
    ]


def test_streams_of_different_lengths_are_an_error_on_both(two: Launch) -> None:
    assert (
        two.of("uneven")
        == [
            "RuntimeError: The processes read [5, 3] prompts from their data sets. Give each "
            "process the whole data set, as TRL wants it, or pass a smaller `num_prompts`."
        ]
        * 2
    )


def test_both_get_to_their_end(two: Launch) -> None:
    assert two.exit_codes == [0, 0]
