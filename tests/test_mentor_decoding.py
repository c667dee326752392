"""Mixed rollouts against a reference without caches, batches or drafts, and their frequencies against the mixture."""

import asyncio

import pytest
import torch

from mintrl_trl.baselines.mentor_decoding import MixedDecoder, MixedRow
from mintrl_trl.baselines.mentor_mixing import acceptance, entropy, expert_weight, mixture_logps, residual_logits
from mintrl_trl.errors import GenerationError
from mintrl_trl.generation.lent_model import LentModel
from mintrl_trl.generation.local import LocalGenerator
from mintrl_trl.generation.noise import draw, random_bits
from tests.tiny import tiny_model

END, LIMIT = 2, 10
PROMPTS = [(1,), (1, 5, 9), (1, 5, 9), (1, 7, 8, 9, 10, 11, 12), (1, 30, 31), (1, 4, 4, 4, 6)]


def models():
    """A student and a larger expert, sharpened so that their entropies differ from token to token."""
    student, expert = tiny_model(0), tiny_model(1, layers=3, width=64)
    for model in (student, expert):
        model.double()
        with torch.no_grad():
            model.model.embed_tokens.weight.mul_(8)
    return student, expert


STUDENT_MODEL, EXPERT_MODEL = models()


def rows(prompts=PROMPTS, limit=LIMIT):
    return [
        MixedRow(prompt, (1, 3, *prompt[1:]), (11 + place, 1000 + place, 2000 + place), limit)
        for place, prompt in enumerate(prompts)
    ]


def decoder(**options) -> MixedDecoder:
    lent = LentModel(STUDENT_MODEL, base_model=EXPERT_MODEL)
    return MixedDecoder(lent, **{"end_ids": {END}, "pad_id": 0, "shared_ids": 47} | options)


def decode(todo, gamma, **options):
    heard, made = [], decoder(**options)
    work = made.decode(todo, gamma, lambda tokens, ended: heard.append((tokens, ended)))
    assert tuple(map(sum, zip(*heard, strict=True))) == (sum(len(row.ids) for row in todo), len(todo))
    return work, made.counters()


@torch.no_grad()
def reference(row: MixedRow, gamma: float, temperature: float = 1.0):
    """One row, token by token, every pass over the whole text."""
    ids, by_expert = [], []
    while len(ids) < row.max_tokens and END not in ids[-1:]:
        logits = STUDENT_MODEL(input_ids=torch.tensor([[*row.student_prefix, *ids]])).logits[0, -1:]
        student = (logits / temperature).log_softmax(-1)
        expert = EXPERT_MODEL(input_ids=torch.tensor([[*row.expert_prefix, *ids]])).logits[0, -1:]
        expert = (expert / temperature).log_softmax(-1)
        position = torch.tensor([len(row.student_prefix) + len(ids)])
        draft, logp = draw(logits, torch.tensor(row.seeds[:1]), position, temperature)
        chance = random_bits(torch.tensor(row.seeds[1:2]), position, 1)[0, 0].double() * 2.0**-63
        taken = chance < acceptance(logp, expert[0, draft], expert_weight(entropy(student), gamma))
        if not taken:
            draft, _ = draw(residual_logits(student, expert), torch.tensor(row.seeds[2:]), position, 1.0)
        ids.append(draft.item())
        by_expert.append(not taken)
    return ids, by_expert


@pytest.mark.parametrize(("draft_tokens", "max_batch", "gamma"), [(1, 256, 3.0), (4, 256, 3.0), (3, 2, 0.3)])
def test_rollouts_are_those_of_the_reference(draft_tokens, max_batch, gamma):
    todo = rows()
    decode(todo, gamma, draft_tokens=draft_tokens, max_batch=max_batch)
    for row in todo:
        assert (row.ids, row.by_expert) == reference(row, gamma)
    assert any(any(row.by_expert) for row in todo) and not all(all(row.by_expert) for row in todo)


def test_temperature_is_that_of_both_models():
    todo = rows(PROMPTS[:2])
    decode(todo, 1.0, temperature=0.7, draft_tokens=2)
    for row in todo:
        assert (row.ids, row.by_expert) == reference(row, 1.0, temperature=0.7)


def test_without_the_expert_a_rollout_is_the_policys_own():
    todo = rows()
    decode(todo, 1e12)
    generator = LocalGenerator(STUDENT_MODEL, end_ids={END})

    async def streamed(row):
        return [token async for token in generator.stream(row.student_prefix, row.max_tokens, row.seeds[0])]

    for row in todo:
        tokens = asyncio.run(streamed(row))
        assert row.ids == [token.id for token in tokens] and not any(row.by_expert)
        assert row.logps == pytest.approx([token.logp for token in tokens])
    generator.close()


def test_frequencies_are_those_of_the_mixture():
    """Chi-square over the first token of 3,000 rollouts; rare tokens together. 99.9 % quantiles bound the statistic."""
    gamma, count = 3.0, 3000
    todo = [MixedRow((1, 5), (1, 5), (3 * i, 3 * i + 1, 3 * i + 2), 1) for i in range(count)]
    decode(todo, gamma, max_batch=count, draft_tokens=1)
    with torch.no_grad():
        student, expert = (
            model(input_ids=torch.tensor([[1, 5]])).logits[0, -1].log_softmax(-1)
            for model in (STUDENT_MODEL, EXPERT_MODEL)
        )
    weight = expert_weight(entropy(student), gamma)
    assert 0.1 < weight < 0.9 and (student.exp() - expert.exp()).abs().sum() > 0.5  # it differs from both
    expected = count * mixture_logps(student, expert, weight).exp()
    seen = torch.bincount(torch.tensor([row.ids[0] for row in todo]), minlength=len(expected)).double()
    often = expected >= 5
    expected, seen = (torch.cat([values[often], values[~often].sum().view(1)]) for values in (expected, seen))
    statistic = ((seen - expected).square() / expected).sum().item()
    freedom = len(expected) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3  # Wilson-Hilferty
    share = sum(row.by_expert[0] for row in todo) / count
    distance = (weight * (student.exp() - expert.exp()).clamp(min=0).sum()).item()
    assert share == pytest.approx(distance, abs=0.03)


def test_work_is_counted():
    (plain, passes), (drafted, fewer) = (decode(rows([(1, 5)] * 3), 1e12, draft_tokens=k) for k in (1, 4))
    tokens = plain.judged
    assert plain.drafted == plain.taken == tokens == drafted.judged == drafted.taken
    assert passes["passes/policy"] == passes["passes/expert"] > fewer["passes/expert"]
    assert fewer["passes/policy"] >= passes["passes/policy"] and drafted.drafted == fewer["mentor/drafted"] >= tokens
    assert passes["positions/policy"] == 2 + tokens  # one prompt, read once, and a token a step
    assert passes["positions/expert"] == 3 + tokens
    assert plain.weight < 1e-9
    followed, _ = decode(rows([(1, 5)] * 3), 1e-9, draft_tokens=4)
    assert followed.weight == followed.judged and followed.taken < followed.judged


def test_the_expert_gives_no_weight_to_ids_that_spell_nothing():
    todo = rows()
    decode(todo, 1e-9, shared_ids=20)
    spoken = [token for row in todo for token, expert in zip(row.ids, row.by_expert, strict=True) if expert]
    assert spoken and max(spoken) < 20


def test_logits_that_are_not_finite_are_an_error():
    broken = tiny_model(3)
    with torch.no_grad():
        broken.model.norm.weight.fill_(torch.nan)
    for student, expert in ((broken, tiny_model(1)), (tiny_model(1), broken)):
        made = MixedDecoder(LentModel(student, base_model=expert), end_ids={END}, pad_id=0, shared_ids=47)
        with pytest.raises(GenerationError, match="not finite"):
            made.decode(rows(), 1e-9, lambda tokens, ended: None)
