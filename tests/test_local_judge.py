"""Self-judges: which reply or step they choose, what they ask the base model, and what a correction holds."""

import asyncio
import json
import random

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from mintrl_trl.data import chains
from mintrl_trl.data.chains import World
from mintrl_trl.errors import ConfigError, JudgeError, NoVerdict
from mintrl_trl.generation.local import LocalGenerator
from mintrl_trl.generation.vocabulary import TokenizerVocabulary
from mintrl_trl.judges.exact import ChainsJudge
from mintrl_trl.judges.local import LikelihoodJudge, LocalJudge, chat_self_judge
from mintrl_trl.judges.prompts import Prompts
from mintrl_trl.judges.render import ChatRenderer
from mintrl_trl.judges.reply import parse_verdict, spell_verdict
from mintrl_trl.rollouts.doors import KEEP, Keep, Revise, SampledToken, TokenText
from mintrl_trl.rollouts.rollout import Problem
from mintrl_trl.rollouts.segmentation import segment

from .generation_oracle import decode_alone, score_alone
from .tiny import tiny_model, tiny_tokenizer

PROBLEM = Problem("what is 2 + 2?", privileged_context="the sum is 4", answer="1024")
STEPS = [TokenText("one", (3, 4)), TokenText("two", (5, 6)), TokenText("three", (7,))]


class ScriptedBase:
    """A base model that answers from a table and records what it is asked."""

    base_version, has_base, max_positions, end_ids = "base-7", True, None, frozenset({2})

    def __init__(self, scores=(), tokens=()):
        self.scores, self.tokens, self.calls = scores, tokens, []

    async def score_all(self, prefix_ids, continuations, *, weights):
        self.calls.append((tuple(prefix_ids), [tuple(ids) for ids in continuations], weights))
        return [self.scores] if len(continuations) == 1 else [self.scores[tuple(ids)] for ids in continuations]

    async def stream(self, prefix_ids, max_tokens, seed, *, weights):
        self.calls.append((tuple(prefix_ids), max_tokens, seed, weights))
        for token in self.tokens:
            yield token


class Renderer:
    """Prompts that show their arguments: 100 + first new step, then the number of steps."""

    def review(self, problem, steps, first_new):
        return (100 + first_new, len(steps))

    def reply(self, step):
        return (90,) if step is None else (91, step)

    def intervention(self, problem, accepted):
        return (77, 78)


def review(judge, first_new=0, seed=0, steps=STEPS):
    return asyncio.run(judge.review(PROBLEM, steps, first_new, seed=seed))


def intervene(judge, accepted=TokenText("onetwo", (3, 4, 5, 6)), max_tokens=4):  # noqa: B008 - a value
    return asyncio.run(judge.intervene(PROBLEM, accepted, Revise(2), max_tokens, seed=9))


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ({(90,): (-1.0,), (91, 1): (-0.5, -0.9), (91, 2): (-0.5, -3.0)}, KEEP),
        ({(90,): (-1.5,), (91, 1): (-0.5, -0.9), (91, 2): (-0.5, -3.0)}, Revise(1)),
        ({(90,): (-4.0,), (91, 1): (-0.5, -3.1), (91, 2): (-0.5, -3.0)}, Revise(2)),
        ({(90,): (-1.0,), (91, 1): (-1.0,), (91, 2): (-1.0,)}, KEEP),
    ],
    ids=["keep by its total, though a mean is higher", "revise", "revise the last", "a tie is keep"],
)
def test_the_likeliest_reply_is_the_verdict(scores, verdict):
    base = ScriptedBase(scores)
    found = review(LocalJudge(base, Renderer()), first_new=1)
    assert (type(found), getattr(found, "step", None)) == (type(verdict), getattr(verdict, "step", None))
    assert base.calls == [((101, 3), [(90,), (91, 1), (91, 2)], "base")]  # only new steps can be rejected


def test_a_bias_moves_the_verdict_and_the_reason_says_by_how_much_it_won():
    scores = {(90,): (-2.0,), (91, 2): (-1.0,)}
    revise = Revise(2, "this reply is 1.00 nats likelier than keep")
    assert review(LocalJudge(ScriptedBase(scores), Renderer()), 2) == revise
    assert review(LocalJudge(ScriptedBase(scores), Renderer(), keep_bias=1.5), 2) == KEEP


def test_a_temperature_draws_the_reply_from_the_softmax():
    scores = {(90,): (-1.0,), (91, 1): (-1.0 - 0.5,), (91, 2): (-50.0,)}
    judge = LocalJudge(ScriptedBase(scores), Renderer(), temperature=0.5)
    drawn = [review(judge, 1, seed) for seed in range(2000)]
    kept = sum(isinstance(verdict, Keep) for verdict in drawn) / 2000
    assert kept == pytest.approx(1 / (1 + 2.718281828**-1), abs=0.035)  # 0.5 nats at temperature 0.5: 1 to 1 / e
    assert {getattr(verdict, "step", None) for verdict in drawn} == {None, 1}
    assert drawn[:50] == [review(judge, 1, seed) for seed in range(50)]


def test_replies_without_any_probability_are_no_verdict():
    base = ScriptedBase({(90,): (float("-inf"),), (91, 2): (float("-inf"),)})
    with pytest.raises(NoVerdict) as caught:
        review(LocalJudge(base, Renderer()), 2)
    assert caught.value.reason == "not_finite"


@pytest.mark.parametrize(
    ("scores", "first_new", "verdict"),
    [
        ((-1.0, -4.9, -5.9), 1, KEEP),  # the steps are the tokens 3 4, then 5 6, then 7
        ((-1.0, -5.1, -9.0), 1, Revise(1, "log-probability -6.10, of which -5.10 for token 6")),
        ((-1.0, -5.0, -9.0), 1, Revise(2, "log-probability -9.00, of which -9.00 for token 7")),
        ((-6.5, -5.0, -1.0, -1.0, -1.0), 0, Revise(0, "log-probability -11.50, of which -6.50 for token 3")),
    ],
    ids=["all above", "the first of two", "the last step", "the first step"],
)
def test_the_first_step_below_the_threshold_is_rejected(scores, first_new, verdict):
    base = ScriptedBase(scores)
    assert review(LikelihoodJudge(base, lambda problem: (70, 71), threshold=-6.0), first_new) == verdict
    accepted = (3, 4) if first_new else ()
    new = (5, 6, 7) if first_new else (3, 4, 5, 6, 7)
    assert base.calls == [((70, 71, *accepted), [new], "base")]


@pytest.mark.parametrize(
    "judge",
    [
        lambda base: LocalJudge(base, Renderer()),
        lambda base: LikelihoodJudge(base, lambda problem: (77, 78), threshold=-6.0),
    ],
    ids=["replies", "likelihood"],
)
def test_a_correction_holds_the_sampled_ids_without_the_end(judge):
    sampled = [SampledToken(8, -0.5), SampledToken(9, -0.25), SampledToken(2, -0.1)]
    base = ScriptedBase(tokens=sampled)
    correction = intervene(judge(base))
    assert (correction.ids, correction.logps) == ((8, 9), (-0.5, -0.25))
    assert base.calls == [((77, 78, 3, 4, 5, 6), 4, 9, "base")]
    assert intervene(judge(ScriptedBase(tokens=sampled[2:]))).ids == ()
    assert judge(base).weight_version == "base-7"


@pytest.mark.parametrize(
    "judge",
    [
        lambda base: LocalJudge(base, Renderer()),
        lambda base: LikelihoodJudge(base, lambda problem: (77, 78), threshold=-6.0),
    ],
    ids=["replies", "likelihood"],
)
def test_a_text_too_long_for_the_model_loses_its_beginning(judge):
    base = ScriptedBase(tokens=[SampledToken(8, -0.5)])
    base.max_positions = 8
    intervene(judge(base))
    assert base.calls[-1][0] == (77, 78, 5, 6)  # 2 of the prompt, 2 of 4, and 4 to come
    base.max_positions = 5
    with pytest.raises(NoVerdict, match="context_length"):
        intervene(judge(base))
    with pytest.raises(NoVerdict, match="context_length"):
        base.max_positions = 3
        review(judge(base), 0)


def test_a_correction_that_gives_the_answer_away_is_withheld():
    base = ScriptedBase(tokens=[SampledToken(8, -0.5)])
    judge = LocalJudge(base, Renderer(), decode=lambda ids: "so it is 1024" if ids == (8,) else "")
    assert intervene(judge).ids == () and judge.counters() == {"judge/leak": 1.0}
    judge = LocalJudge(base, Renderer(), decode=lambda ids: "so it is 10245")
    assert intervene(judge).ids == (8,) and judge.leaks == 0
    base.work = lambda weights: {"base": (3, 40)}[weights]
    assert judge.counters() == {"judge/leak": 0.0, "passes/judge": 3.0, "positions/judge": 40.0}


def test_text_without_ids_is_a_wrong_set_up():
    with pytest.raises(JudgeError, match="TokenText"):
        review(LikelihoodJudge(ScriptedBase(), lambda problem: (70,), threshold=-6.0), steps=["plain text"])
    with pytest.raises(JudgeError, match="TokenText"):
        intervene(LocalJudge(ScriptedBase(), Renderer()), accepted="plain text")


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda base: LocalJudge(base, Renderer(), temperature=-1.0), "temperature"),
        (lambda base: LocalJudge(base, Renderer(), keep_bias=float("inf")), "keep_bias"),
        (lambda base: LikelihoodJudge(base, lambda problem: (70,), threshold=0.0), "threshold"),
        (lambda base: LocalJudge(object(), Renderer()), "generator"),
        (lambda base: ChatRenderer(chains.build_tokenizer()), "processing_class"),
    ],
    ids=["temperature", "bias", "threshold", "no base weights", "no chat template"],
)
def test_what_cannot_work_is_refused(build, field):
    with pytest.raises(ConfigError) as caught:
        build(ScriptedBase())
    assert caught.value.field == field


@pytest.mark.parametrize("step", [None, 0, 2, 11])
def test_replies_are_what_the_reader_of_replies_reads(step):
    verdict = parse_verdict(spell_verdict(step), num_steps=12, first_new=0)
    assert verdict == (KEEP if step is None else Revise(step))
    assert set(json.loads(spell_verdict(step))) == ({"decision"} if step is None else {"decision", "step"})


@pytest.mark.parametrize("context", ["the sum is 4", None])
@pytest.mark.parametrize("domain", ["math", "code"])
def test_the_prompt_for_a_solution(domain, context):
    system, user = Prompts(domain).solution(Problem("what is 2 + 2?", privileged_context=context, answer="1024"))
    assert {"math": "mathematical", "code": "programming"}[domain] in system["content"]
    assert user["content"].startswith("<problem>\nwhat is 2 + 2?\n</problem>")
    assert user["content"].endswith("Write the solution.")
    assert ("<reference>\nthe sum is 4\n</reference>" in user["content"]) == (context is not None)
    assert ("never mention the reference" in user["content"]) == (context is not None)
    assert "1024" not in user["content"]


def test_a_renderer_fills_the_chat_template_and_adds_no_text_of_the_policy():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}={{ m['content'] }}\n{% endfor %}"
        "{{ 'thinking' if enable_thinking else 'plain' }}{{ mode }}?"
    )
    renderer = ChatRenderer(tokenizer, chat_template_kwargs={"mode": " x"})
    accepted = TokenText("zzzz", (38,) * 4)
    prompts = {
        "review": (renderer.review(PROBLEM, STEPS, 1), Prompts("math").review(PROBLEM, STEPS, 1)),
        "intervention": (
            renderer.intervention(PROBLEM, accepted),
            Prompts("math").intervention(PROBLEM, accepted, prefill=True)[:2],
        ),
        "solution": (renderer.solution(PROBLEM), Prompts("math").solution(PROBLEM)),
    }
    for ids, messages in prompts.values():
        text = "".join(f"{message['role']}={message['content']}\n" for message in messages) + "plain x?"
        assert ids == tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        assert "zzzz" not in text
    assert renderer.decode([*tokenizer("a b", add_special_tokens=False)["input_ids"], 2]) == "a b"


def test_a_chat_self_judge_asks_the_base_weights_of_the_trained_model():
    base = tiny_model(1, layers=1)
    base.config.max_position_embeddings = 4096
    base = base.double()
    model = get_peft_model(tiny_model(1, layers=1).double(), LoraConfig(r=2, target_modules="all-linear"))
    model.base_model.config.max_position_embeddings = 4096
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_()
    tokenizer = tiny_tokenizer()
    generator = LocalGenerator(model, end_ids=[2])
    judge = chat_self_judge(generator, tokenizer, domain="math")
    renderer = ChatRenderer(tokenizer)
    verdict = review(judge, first_new=1)
    totals = [sum(score_alone(base, renderer.review(PROBLEM, STEPS, 1), renderer.reply(step))) for step in (None, 1, 2)]
    expected = [None, 1, 2][totals.index(max(totals))]
    assert getattr(verdict, "step", None) == expected
    accepted = TokenText("onetwo", (3, 4, 5, 6))
    correction = intervene(judge, accepted, max_tokens=12)
    ids, logps = decode_alone(base, [*renderer.intervention(PROBLEM, accepted), *accepted.ids], 12, 9, end_ids=[2])
    length = len(ids) - (ids[-1] == 2)
    assert correction.ids == tuple(ids[:length]) and correction.logps == pytest.approx(logps[:length])
    likelihood = chat_self_judge(generator, tokenizer, threshold=-2.0)
    assert isinstance(likelihood, LikelihoodJudge)
    scores = score_alone(base, renderer.solution(PROBLEM), [3, 4, 5, 6, 7])
    first = next(index for index, score in enumerate(scores) if score < -2.0)
    assert review(likelihood).step == [0, 0, 1, 1, 2][first]
    generator.close()


def test_on_the_small_world_the_likelihood_judge_agrees_with_the_exact_one():
    world, tokenizer = World.load(), chains.build_tokenizer()
    model = AutoModelForCausalLM.from_pretrained(chains.base_model_path()).eval()
    generator = LocalGenerator(model, end_ids=[chains.EOS_ID], base_model=model)
    vocabulary = TokenizerVocabulary(tokenizer, [chains.EOS_ID], len(tokenizer))
    judge = LikelihoodJudge(generator, chains.privileged_prompt_ids, threshold=world.privileged_threshold)
    exact = ChainsJudge(world)
    rng = random.Random(5)
    rows = [world.row(chains.draw_chain(rng)) for _ in range(60)]

    async def both(seed, row):
        problem = Problem(row["prompt"], privileged_context=row["privileged_context"], answer=row["answer"])
        prefix = (chains.BOS_ID, *chains.encode(row["prompt"]))
        ids = [token.id async for token in generator.stream(prefix, chains.SOLUTION_TOKENS, seed)]
        steps = segment(ids, vocabulary).steps
        verdicts = [await each.review(problem, steps, 0, seed=seed) for each in (judge, exact)]
        if isinstance(verdicts[1], Keep):
            return verdicts, None
        accepted = vocabulary_text(steps[: verdicts[1].step])
        correction = await judge.intervene(problem, accepted, verdicts[1], 1, seed=seed)
        right = world.continuation(chains.Chain.parse(row["prompt"]), accepted)
        return verdicts, vocabulary.token_bytes(correction.ids[0]).decode() == right[0]

    async def all_rows():
        return await asyncio.gather(*(both(seed, row) for seed, row in enumerate(rows)))

    found = asyncio.run(all_rows())
    generator.close()
    rejected = [right for _, right in found if right is not None]
    agreed = sum(getattr(mine, "step", None) == getattr(theirs, "step", None) for (mine, theirs), _ in found)
    assert 20 < len(rejected) < 60
    assert agreed >= 55
    assert sum(rejected) >= 0.9 * len(rejected)  # the correction is the right value


def vocabulary_text(steps):
    return TokenText("".join(steps), tuple(token for step in steps for token in step.ids))
