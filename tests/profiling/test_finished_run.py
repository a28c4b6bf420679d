"""Profiles of finished runs, from the guard's record and from tables of token counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from support import tiny

from truncation_guard import TruncationGuardCallback
from truncation_guard.profiling.finished_run import profile_completions


def batch(step, ended, cut=(), *, limit=8, split="train", width=1, number=0):
    """A line of the record; the other items of a batch do not matter here."""
    lengths = {"bin_width": width, "ended": list(ended), "cut": list(cut)}
    return {
        "kind": "batch",
        "split": split,
        "step": step,
        "batch": number,
        "limit": limit,
        "lengths": lengths,
    }


START = {"kind": "start", "mode": "observe", "limit": 8, "resumed_from_step": None}


def record(folder, *entries, end=""):
    path = folder / "truncation_guard.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + end)
    return path


def table(path, *counts, **columns):
    """A table of completions of so many tokens; their text says nothing of them."""
    path.parent.mkdir(exist_ok=True)
    rows = len(counts)
    data = {"step": [1] * rows, "prompt": ["w3"] * rows, "completion": ["w5"] * rows}
    data |= {"completion_length": list(counts)} | columns
    parquet.write_table(pa.table(data), path)
    return path


def refused(kind, source, message, *args, **kwargs):
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        profile_completions(source, *args, **kwargs)


class TestRecord:
    def test_the_lengths_of_all_training_batches_are_added_up(self, tmp_path):
        path = record(
            tmp_path,
            START,
            batch(0, [(2, 3), (5, 1)], [(8, 4)]),
            batch(0, [(2, 1)], [(8, 7)], number=1),
            batch(1, [(7, 99)], split="eval"),
            batch(1, [(3, 6)], [(4, 2)]),
        )
        for source in (path, tmp_path, str(tmp_path)):
            made = profile_completions(source)
            assert made.sample.histograms == ({2: 4, 3: 6, 5: 1}, {4: 2, 8: 11})
            assert (made.source, made.limit, made.skipped) == ("completions", 8, 0)
            assert made.column == str(path)
            assert made.notes == (
                "From all 3 generation batches of the training: the model changed meanwhile.",
            )

    def test_a_torn_last_line_is_passed_over(self, tmp_path):
        torn = json.dumps(batch(1, [(2, 5)]))[:40]
        record(tmp_path, START, batch(0, [(2, 3)]), end=torn)
        assert profile_completions(tmp_path).sample.histograms == ({2: 3}, {})

    def test_bins_are_read_as_their_upper_edges_but_no_length_is_above_the_limit(self, tmp_path):
        record(tmp_path, START, batch(0, [(4, 3), (1004, 1)], [(1004, 2)], limit=1001, width=4))
        made = profile_completions(tmp_path)
        assert made.sample.histograms == ({4: 3, 1001: 1}, {1001: 2})
        assert made.notes[1:] == ("Lengths are rounded up, by at most 3 tokens.",)

    def test_the_last_limit_is_the_current_one(self, tmp_path):
        record(tmp_path, START, batch(0, [], [(8, 3)]), batch(1, [(9, 1)], [(16, 2)], limit=16))
        made = profile_completions(tmp_path)
        assert made.limit == 16
        assert made.sample.histograms == ({9: 1}, {8: 3, 16: 2})
        assert made.notes[1:] == (
            "The limit changed during the run; the last one counts as the current one.",
        )

    def test_a_run_without_a_limit(self, tmp_path):
        record(tmp_path, START, batch(0, [(9, 1)], [(64, 2)], limit=None))
        made = profile_completions(tmp_path)
        assert (made.limit, made.sample.histograms) == (None, ({9: 1}, {64: 2}))

    def test_of_several_runs_the_last_one_that_generated_counts(self, tmp_path):
        record(
            tmp_path,
            START,
            batch(0, [(2, 3)]),
            START,
            batch(0, [(5, 1)]),
            START,
            batch(0, [(7, 1)], split="eval"),
        )
        made = profile_completions(tmp_path)
        assert made.sample.histograms == ({5: 1}, {})
        assert made.notes[1:] == ("The file holds 2 runs; this is the last one.",)

    @pytest.mark.parametrize("entries", [(), (START,), (START, batch(0, [(2, 1)], split="eval"))])
    def test_a_record_without_a_training_batch_is_refused(self, entries, tmp_path):
        path = record(tmp_path, *entries, end='{"kind": "batch", "sp')
        refused(
            ValueError,
            path,
            f"{path} has no generation batch of a training. Pass the record of a run that got to "
            "its first step.",
        )

    @pytest.mark.parametrize(
        ("entry", "error"),
        [
            (batch(0, [(2, 1)]) | {"lengths": None}, "TypeError"),
            ({k: v for k, v in batch(0, [(2, 1)]).items() if k != "lengths"}, "KeyError"),
            ({k: v for k, v in batch(0, [(2, 1)]).items() if k != "limit"}, "KeyError"),
            (batch(0, [(2, -1)]), "ValueError"),
            (batch(0, [2]), "TypeError"),
            (batch(0, []), "ValueError"),
        ],
    )
    def test_a_record_that_is_not_the_guards_is_refused(self, entry, error, tmp_path):
        path = record(tmp_path, START, entry)
        with pytest.raises(
            ValueError,
            match=rf"^{re.escape(str(path))} has a batch without its "
            rf"lengths or limit \({error}\(.*\)\)\. Pass a record as a TruncationGuardCallback "
            r"wrote it\.$",
        ):
            profile_completions(path)

    def test_what_the_guard_writes_is_read(self, tmp_path):
        trainer = tiny.trainer(
            tiny.config(tmp_path, max_steps=2),
            tiny.scripted([1.0, 0.0]),
            [TruncationGuardCallback()],
            rollouts=[tiny.E3, tiny.T8, tiny.E3, [5, 1]],
        )
        trainer.train()
        assert profile_completions(tmp_path).sample.histograms == ({2: 4, 3: 8}, {8: 4})


class TestTables:
    def test_token_counts_are_read_and_no_text(self, tmp_path):
        path = table(tmp_path / "completions_00001.parquet", 2, 4, 6, 7, 7, 8, 8)
        made = profile_completions(path, limit=8)
        assert made.sample.histograms == ({2: 1, 4: 1, 6: 1, 7: 2}, {8: 2})
        assert (made.source, made.column, made.limit) == ("completions", str(path), 8)
        assert made.notes == (
            "2 completions of 8 tokens are taken as truncated: the tables do not say which were.",
        )

    def test_where_none_has_the_length_of_the_limit_none_was_truncated(self, tmp_path):
        path = table(tmp_path / "completions_00001.parquet", 2, 7)
        made = profile_completions(path, limit=8)
        assert (made.sample.histograms, made.notes) == (({2: 1, 7: 1}, {}), ())

    def test_a_folder_holds_tables_in_the_order_of_their_steps(self, tmp_path):
        folder = tmp_path / "completions"
        for step, counts in ((99999, (1, 2)), (100000, (2, 3)), (2, (5, 1))):
            table(folder / f"completions_{step:05d}.parquet", *counts)
        # In this order each begins with the row that the one before it ended on.
        for source in (tmp_path, folder):
            made = profile_completions(source, limit=8)
            assert made.sample.histograms == ({1: 1, 2: 1, 3: 1, 5: 1}, {})
            assert made.column == str(source)

    def test_a_record_goes_first(self, tmp_path):
        table(tmp_path / "completions" / "completions_00001.parquet", 2)
        record(tmp_path, START, batch(0, [(7, 1)]))
        assert profile_completions(tmp_path).sample.histograms == ({7: 1}, {})

    def test_rows_that_a_later_table_repeats_count_once(self, tmp_path):
        first = (1, 2, 3, 4)
        for step, counts in enumerate([first, first, (3, 4, 5, 6), (6, 5, 6, 5)]):
            table(tmp_path / f"completions_{step:05d}.parquet", *counts, advantage=[0.5] * 4)
        made = profile_completions(tmp_path, limit=8)
        assert made.sample.histograms == ({1: 1, 2: 1, 3: 1, 4: 1, 5: 3, 6: 2}, {})

    def test_equal_completions_with_other_advantages_are_other_completions(self, tmp_path):
        for step in (1, 2):
            columns = {"advantage": [0.5 * step] * 2}
            table(tmp_path / f"completions_{step:05d}.parquet", 1, 1, **columns)
        made = profile_completions(tmp_path, limit=8)
        assert made.sample.histograms == ({1: 4}, {})

    def test_what_a_reward_function_logs_is_read(self, tmp_path):
        rollouts = [[5, 6, 1], tiny.T8, [7, 1], [9, 10, 11, 1], [5, 5, 1], tiny.T8, tiny.T8, [8, 1]]
        reward = tiny.scripted([1.0, 0.0, 0.5])

        def logged(completions, completion_ids, log_extra, **kwargs):
            log_extra("completion_length", [len(ids) for ids in completion_ids])
            return reward(completions, completion_ids=completion_ids, **kwargs)

        trainer = tiny.trainer(
            # Each batch is logged four times.
            tiny.config(tmp_path, max_steps=8, log_completions=True, num_iterations=4),
            logged,
            rollouts=rollouts,
        )
        trainer.train()
        assert len(list((tmp_path / "completions").iterdir())) == 8
        made = profile_completions(tmp_path, limit=8)
        assert made.sample.histograms == ({2: 4, 3: 4, 4: 2}, {8: 6})


class TestBadSources:
    def test_a_missing_path(self, tmp_path):
        path = tmp_path / "run"
        refused(FileNotFoundError, path, f"{path} does not exist. Pass a run's output folder.")

    def test_an_empty_folder(self, tmp_path):
        refused(
            FileNotFoundError,
            tmp_path,
            f"{tmp_path} has neither a truncation_guard.jsonl nor completions tables. Train with a "
            "TruncationGuardCallback or log_completions=True, or pass another folder.",
        )

    def test_another_file(self, tmp_path):
        path = tmp_path / "trainer_state.json"
        path.write_text("{}")
        refused(
            ValueError,
            path,
            f"{path} is neither a .jsonl nor a .parquet file. Pass a run's output folder, a "
            "truncation_guard.jsonl or one of TRL's completions tables.",
        )

    @pytest.mark.parametrize("content", [b"", b"PAR1", b"not a table" * 99])
    def test_an_unreadable_table(self, content, tmp_path):
        path = tmp_path / "completions_00001.parquet"
        path.write_bytes(content)
        message = (
            rf"^{re.escape(str(path))} cannot be read as a parquet table \((?s:.+)\)\. Take it out "
            r"of the folder, or write it again\.$"
        )
        with pytest.raises(ValueError, match=message):
            profile_completions(tmp_path, limit=8)

    def test_a_torn_table(self, tmp_path):
        path = table(tmp_path / "completions_00001.parquet", *range(1, 9))
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(ValueError, match=r" cannot be read as a parquet table \("):
            profile_completions(path, limit=8)

    @pytest.mark.parametrize("limit", [None, 8])
    def test_a_table_of_texts(self, limit, tmp_path):
        path = tmp_path / "completions_00001.parquet"
        parquet.write_table(pa.table({"prompt": ["w3"], "completion": ["w4"]}), path)
        refused(
            ValueError,
            path,
            f"{path} has no column `completion_length` of token counts, only ['prompt', "
            "'completion']; texts are not counted. Pass a truncation_guard.jsonl, which a "
            "TruncationGuardCallback writes, or log the counts in a reward function: "
            'log_extra("completion_length", [len(ids) for ids in completion_ids]).',
            limit=limit,
        )

    @pytest.mark.parametrize("count", [1.5, None, "8", -1, True])
    def test_a_column_of_something_else(self, count, tmp_path):
        path = table(tmp_path / "completions_00001.parquet", count)
        refused(
            ValueError,
            path,
            f"{path} has {count!r} in its column `completion_length`, which is no token count. "
            "Pass a table with whole numbers of tokens there.",
            limit=8,
        )

    def test_a_table_without_a_row(self, tmp_path):
        path = table(tmp_path / "completions_00001.parquet")
        refused(
            ValueError,
            path,
            f"{path} has no completion. Pass the tables of a run that generated some.",
            limit=8,
        )

    def test_a_table_without_limit(self, tmp_path):
        path = table(tmp_path / "completions_00001.parquet", 2)
        refused(
            ValueError,
            path,
            f"{path}: TRL's tables do not hold the limit. Pass the run's `limit` "
            "(max_completion_length).",
        )

    def test_a_limit_that_is_none(self, tmp_path):
        path = table(tmp_path / "completions_00001.parquet", 2)
        refused(
            ValueError,
            Path(path),
            "`limit` must be an integer of at least 1, got 0. Pass the run's "
            "max_completion_length.",
            limit=0,
        )

    def test_a_limit_below_a_completion(self, tmp_path):
        path = table(tmp_path / "completions_00001.parquet", 2, 9)
        refused(
            ValueError,
            path,
            f"{path} has a completion of 9 tokens, more than `limit`=8. Pass the run's "
            "max_completion_length.",
            limit=8,
        )
