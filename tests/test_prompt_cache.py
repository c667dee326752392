"""What a judge's server can keep: prompts of one rollout, as the token ids of tokenizers that join as real ones do."""

from itertools import pairwise

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mintrl_trl.judges.prompts import Prompts
from mintrl_trl.rollouts.doors import KEEP, Correction, Revise
from mintrl_trl.rollouts.loop import BackgroundLoop
from mintrl_trl.rollouts.rollout import Problem

from .byte_level import QWEN_WORDS
from .doors import ByteVocabulary, ScriptedGenerator, ScriptedJudge, sample
from .tiny_qwen import CHAT_TEMPLATE

LINES = "We add.\n\nSo x = 2.\n\n```python\nfor i in x:\n\n    print(i)\n```\n\nThen 数 y <= 3\n\n\n\t- a\n\n"
SPLITS = {
    "qwen": [
        pre_tokenizers.Split(QWEN_WORDS, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
    "gpt2": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
}
PROBLEMS = [Problem("What is {{ x }}?"), Problem("What is x?", privileged_context="It is\n\n2.")]


@pytest.fixture(scope="module")
def loop():
    loop = BackgroundLoop()
    yield loop
    loop.close()


def judged(loop, revised):
    """The judge of a rollout that writes `LINES` over and over. `revised`: per review, which new step is rejected."""
    data = LINES.encode()
    generator = ScriptedGenerator(lambda seed, position: data[(position - 3) % len(data)])
    judge = ScriptedJudge(correction=lambda call: Correction(text="Wait, no.\n\nLet me check"))

    def verdict(call):
        new_step = revised.get(len(judge.reviews))
        return KEEP if new_step is None else Revise(call.first_new + new_step, "wrong")

    judge.verdict = verdict
    sample(loop, generator, judge, ByteVocabulary(), k=45, reviews=4, h=30, limit=250)
    return judge


def rendered(tokenizer, messages):
    options = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    return tokenizer.apply_chat_template(messages, **options)


def learned(prompts, split):
    """A byte-level BPE that has learned every merge these prompts offer, across the ends of tags and lines too."""
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer, bare.decoder = pre_tokenizers.Sequence(SPLITS[split]), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4000,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    options = {"chat_template": CHAT_TEMPLATE}
    template = PreTrainedTokenizerFast(tokenizer_object=bare, **options)
    bare.train_from_iterator([rendered(template, prompt) for prompt in prompts], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bare, **options)


def assert_repeats(tokenizer, before, after, mark):
    """The tokens of `after` before the text `mark` are those with which `before` begins."""
    before, after = rendered(tokenizer, before), rendered(tokenizer, after)
    end = after.index(mark)
    encoded = tokenizer(after, add_special_tokens=False, return_offsets_mapping=True)
    known = [
        token for token, (_, stop) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True) if stop <= end
    ]
    assert tokenizer(before, add_special_tokens=False)["input_ids"][: len(known)] == known
    assert len(known) > 20


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("domain", ["math", "code"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=["without", "with"])
@pytest.mark.parametrize("revised", [{}, {2: 0}, {2: 1, 3: 0}], ids=["kept", "one-revised", "two-revised"])
def test_a_review_repeats_the_tokens_of_the_one_before(loop, split, domain, problem, revised):
    calls = judged(loop, revised).reviews
    assert len(calls) == 4
    prompts = [Prompts(domain).review(problem, call.steps, call.first_new) for call in calls]
    tokenizer = learned(prompts, split)
    for number, (before, after) in enumerate(pairwise(prompts), start=1):
        stands = calls[number].first_new  # after a Keep: up to the first new step; else up to the rejected one
        if number in revised:
            stands = calls[number - 1].first_new + revised[number]
        assert_repeats(tokenizer, before, after, f"<step {stands + 1}>")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("domain", ["math", "code"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=["without", "with"])
def test_a_correction_that_is_shown_the_text_repeats_the_one_before(loop, split, domain, problem):
    calls = judged(loop, {1: 1, 2: 1, 3: 0}).corrections
    prompts = [Prompts(domain).intervention(problem, call.accepted, f"reason {i}") for i, call in enumerate(calls)]
    tokenizer = learned(prompts, split)
    for number, (before, after) in enumerate(pairwise(prompts)):
        stands = len(calls[number].accepted.rstrip())
        assert calls[number + 1].accepted.startswith(calls[number].accepted)
        text = after[1]["content"]
        mark = text[text.index("<solution>\n") + len("<solution>\n") + stands :]
        assert_repeats(tokenizer, before, after, mark)
