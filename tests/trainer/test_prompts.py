"""The prompts of a trainer, read so that nothing is changed by it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from datasets import Dataset, Image, IterableDataset
from support import chats, tiny
from support.stand_ins import stand_in

from truncation_guard.trainer import prompts as trainer_prompts


def holding(dataset):
    return SimpleNamespace(train_dataset=dataset)


class TestPrompts:
    @pytest.mark.parametrize(("rows", "number"), [(1, 1), (64, 64), (65, 64), (1000, 64)])
    def test_up_to_64_come_evenly_from_all_over_the_data(self, rows, number):
        dataset = Dataset.from_dict({"prompt": [f"p{i}" for i in range(rows)]})
        places = [int(p[1:]) for p in trainer_prompts.sample_prompts(holding(dataset))]
        assert len(places) == number
        assert places == sorted(set(places))
        gaps = [after - before for before, after in zip(places, [*places[1:], rows], strict=True)]
        assert places[0] == 0
        assert {rows // number} <= set(gaps) <= {rows // number, rows // number + 1}

    def test_no_data_has_no_prompts(self):
        assert trainer_prompts.sample_prompts(holding(Dataset.from_dict({"prompt": []}))) == []

    def test_a_stream_is_not_touched(self):
        taken = []

        def rows():
            taken.append(1)
            yield {"prompt": "w3"}

        stream = IterableDataset.from_generator(rows)
        assert trainer_prompts.sample_prompts(holding(stream)) == []
        assert taken == []

    def test_a_transform_of_the_users_is_not_called(self):
        taken = []

        def transform(batch):
            taken.append(1)
            return batch

        dataset = tiny.prompts(8).with_transform(transform)
        assert trainer_prompts.sample_prompts(holding(dataset)) == []
        assert taken == []

    def test_images_are_not_decoded(self):
        dataset = Dataset.from_dict({"prompt": ["w3"], "images": [["nowhere.png"]]})
        dataset = dataset.cast_column("images", [Image()])
        assert trainer_prompts.sample_prompts(holding(dataset)) == []

    def test_prompts_with_an_image_among_their_words_are_left_out(self):
        words = [{"role": "user", "content": [{"type": "text", "text": "w3"}]}]
        image = [{"role": "user", "content": [{"type": "image", "text": None}]}]
        dataset = Dataset.from_dict({"prompt": [words, image]})
        assert trainer_prompts.sample_prompts(holding(dataset)) == [words]

    @pytest.mark.parametrize(
        ("prompts", "expected"),
        [([], False), (["w3"], False), ([[chats.user("w3")]], True)],
    )
    def test_conversations_are_told_by_trls_rule(self, prompts, expected):
        assert trainer_prompts.is_conversational(prompts) is expected


class TestLengths:
    @pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
    def test_they_are_those_of_the_trainers_own_prompts(self, tmp_path, algorithm):
        made = tiny.trainer(tiny.config(tmp_path, algorithm), tiny.scripted([1.0]))
        assert trainer_prompts.prompt_lengths(made, ["w3", "w4 w5 w6"]) == [1, 3]

    @pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
    def test_a_conversation_counts_with_its_template(self, tmp_path, algorithm):
        made = tiny.trainer(
            tiny.config(tmp_path, algorithm),
            tiny.scripted([1.0]),
            processing_class=chats.tokenizer(),
        )
        rendered = "<|im_start|>user\nw3<|im_end|>\n<|im_start|>assistant\n"
        lengths = trainer_prompts.prompt_lengths(made, [[chats.user("w3")]])
        assert lengths == [chats.units(rendered)]

    @pytest.mark.parametrize(
        "changes", [{"rollout_func": print}, {"environment_factories": {None: object}}]
    )
    def test_they_are_unknown_where_a_rollout_makes_the_prompt(self, changes):
        assert trainer_prompts.prompt_lengths(stand_in(**changes), ["w3"]) == []

    def test_no_prompts_have_no_lengths(self):
        assert trainer_prompts.prompt_lengths(stand_in(), []) == []


class TestLongest:
    @pytest.fixture
    def asked(self, monkeypatch):
        """A trainer's own method, and how many prompts it was given."""
        given = []
        measure = trainer_prompts.prompt_lengths

        def counted(trainer, prompts):
            given.append(len(prompts))
            return measure(trainer, prompts)

        monkeypatch.setattr(trainer_prompts, "prompt_lengths", counted)
        return given

    def made(self, folder, words):
        data = Dataset.from_dict({"prompt": [" ".join(["w3"] * n) for n in words]})
        args = tiny.config(folder)
        return tiny.trainer(args, tiny.scripted([0.0]), train_dataset=data)

    @pytest.mark.parametrize("place", [0, 999, 1000, 2345])
    def test_it_is_found_wherever_it_stands(self, tmp_path, place):
        words = [1 + n % 7 for n in range(2346)]
        words[place] = 31
        made = self.made(tmp_path, words)
        found = [
            trainer_prompts.longest_prompt(made, made.train_dataset, above=n) for n in (10, 30, 31)
        ]
        assert found == [31, 31, 0]

    def test_prompts_that_cannot_be_too_long_are_not_tokenized(self, tmp_path, asked):
        # 13 words are 38 bytes, so at most 38 tokens, and a template adds less than 13.
        made = self.made(tmp_path, [13] * 2000)
        assert trainer_prompts.longest_prompt(made, made.train_dataset, above=60) == 0
        assert sum(asked) == 64

    def test_what_is_no_prompt_is_passed_over(self, tmp_path):
        made = self.made(tmp_path, [9])
        data = Dataset.from_dict({"prompt": [None, "w3 w4 w5 w6"]})
        assert trainer_prompts.longest_prompt(made, data, above=1) == 4

    def test_a_stream_is_not_read(self, tmp_path):
        made = self.made(tmp_path, [9])
        stream = made.train_dataset.to_iterable_dataset()
        assert trainer_prompts.longest_prompt(made, stream, above=1) == 0
