"""The snippets of README.md, as written: one update of training against servers, and a judge of one's own.

Both servers are scripted: the policy adds two numbers, rightly or wrongly by its seed; the judge finds wrong sums.
"""

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

from mintrl_trl import KEEP, Correction, MInTRLConfig, MInTRLTrainer, Revise
from mintrl_trl.reporting.records import RecordedSpan, RolloutRecord
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.doors import SampledToken
from mintrl_trl.rollouts.rollout import Author, Decision, Role, StopReason

from .fake_vllm import FakeVLLM, Seen, events
from .tiny_qwen import cached_qwen, qwen_model, qwen_tokenizer
from .trainers import settings, weights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),  # the first test waits for 512 rollouts and as many micro-batches
    # What torch says about a machine without a GPU, where `use_cpu` is not set.
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator is found"),
    # PEFT asks the hub for the base model's vocabulary size when it saves a checkpoint.
    pytest.mark.filterwarnings("ignore:Could not find a config file in Qwen/Qwen3-1.7B"),
]

SNIPPETS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)
(TRAINING,) = (snippet for snippet in SNIPPETS if "use_vllm=True" in snippet)
(IN_PROCESS,) = (snippet for snippet in SNIPPETS if "ChainsJudge(world)" in snippet)
(OWN_JUDGE,) = (snippet for snippet in SNIPPETS if "class UnitJudge" in snippet)

TOKENIZER = qwen_tokenizer()
POLICY, JUDGE = "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B-Instruct-2507"
FIRST_STEP = "The task is a sum.\n\n"
CORRECTION = "Wait, a carry is missing.\n\n"
SECRET = "column by column"
SUM = re.compile(r"(\d+) \+ (\d+)\?")
ROWS = [
    {
        "prompt": [{"role": "user", "content": f"What is {a} + {a + 7}? Put the answer in \\boxed{{}}."}],
        "answer": str(2 * a + 7),
        "privileged_context": f"Add {a} and {a + 7} {SECRET}.",
    }
    for a in range(11, 51)
]


def total(text: str) -> int:
    """The right answer to the question in `text`."""
    left, right = SUM.findall(text)[-1]
    return int(left) + int(right)


def write_answer(body: dict) -> list[dict]:
    """The policy: a first step, then an answer that is right after a correction and else for every second seed."""
    prefix = TOKENIZER.decode(body["prompt"])
    if CORRECTION in prefix:
        text = rf"So \boxed{{{total(prefix)}}}.<|im_end|>"
    else:
        text = rf"{FIRST_STEP}So \boxed{{{total(prefix) + body['seed'] % 2}}}.<|im_end|>"
    ids = TOKENIZER.encode(text)
    return events(body["prompt"], ids, size=len(ids))


def judge(body: dict) -> str:
    """The judge: sends a wrong answer back to its step, and reminds of the carry."""
    system, user = (message["content"] for message in body["messages"])
    if '"decision"' not in system:
        return CORRECTION
    for step, boxed in re.findall(r"<step (\d+)>\n[^<]*\\boxed\{(\d+)\}", user):
        if int(boxed) != total(user):
            return json.dumps({"reason": "the sum is wrong", "decision": "revise", "step": int(step)})
    return '{"reason": "right so far", "decision": "keep"}'


@dataclass
class Run:
    """The first snippet after it ran."""

    folder: Path
    trainer: MInTRLTrainer
    before: dict[str, torch.Tensor]
    records: list[RolloutRecord]
    to_policy: list[Seen]
    to_judge: list[Seen]
    open_connections: list[int]

    def bodies(self, path: str) -> list[dict]:
        return [seen.body for seen in self.to_policy + self.to_judge if seen.path == path]

    @property
    def corrections(self) -> list[tuple[RolloutRecord, RecordedSpan]]:
        return [(r, span) for r in self.records for span in r.spans if span.author is Author.INTERVENTION]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Run]:
    """Run the first snippet, on other ports and for one update; nothing else is changed."""
    folder = tmp_path_factory.mktemp("snippet")
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    policy_server, judge_server = FakeVLLM(POLICY, max_model_len=40_960), FakeVLLM(JUDGE)
    policy_server.script, judge_server.chat = write_answer, judge
    definitions, train, rest = TRAINING.partition("trainer.train()")
    assert train and not rest.strip()
    with policy_server, judge_server, cached_qwen(POLICY), contextlib.chdir(folder):
        code = definitions.replace("8000", str(policy_server.port)).replace("8001", str(judge_server.port))
        names = {}
        exec(code, names)
        trainer = names["trainer"]
        before = weights(trainer)
        trainer.args.max_steps = 1
        try:
            exec(train, names)
        finally:
            trainer.close()
        servers, deadline = [policy_server, judge_server], time.monotonic() + 5
        while any(server.open_connections for server in servers) and time.monotonic() < deadline:
            time.sleep(0.01)
        open_connections = [server.open_connections for server in servers]
    records = list(RunFolder(folder / "runs" / "demo").rollouts())
    return Run(folder, trainer, before, records, policy_server.seen, judge_server.seen, open_connections)


def test_the_adapter_is_on_the_server_before_the_first_request(run):
    posts = [seen.path for seen in run.to_policy if seen.method == "POST"]
    assert posts[0] == "/v1/load_lora_adapter"
    assert set(posts[1:]) == {"/v1/completions"}
    (loaded,) = run.bodies("/v1/load_lora_adapter")
    assert re.fullmatch(r"adapter-\w+-v-update-0", loaded["lora_name"])
    assert {body["model"] for body in run.bodies("/v1/completions")} == {loaded["lora_name"]}
    files = load_file(Path(loaded["lora_path"]) / "adapter_model.safetensors")
    sent = {name.replace(".weight", ".default.weight"): value for name, value in files.items()}
    assert sent.keys() == {name for name in run.before if ".lora_" in name}
    assert all(torch.equal(value, run.before[name]) for name, value in sent.items())


def test_every_request_continues_one_prefix_of_token_ids(run):
    bodies = run.bodies("/v1/completions")
    assert {body["n"] for body in bodies} == {1}
    assert all(type(token) is int for body in bodies for token in body["prompt"])
    assert len({(body["seed"], *body["prompt"]) for body in bodies}) == len(bodies) == 512 + len(run.corrections)

    template = dict(add_generation_prompt=True, enable_thinking=False, return_dict=False)
    prompts = {tuple(TOKENIZER.apply_chat_template(row["prompt"], **template)) for row in ROWS}
    asked = Counter(tuple(body["prompt"]) for body in bodies)
    assert [asked[prompt] for prompt in prompts if asked[prompt]] == [16] * 32
    spoken = Counter()  # what stood of a response when it was continued
    for prefix, times in asked.items():
        if prefix not in prompts:
            (prompt,) = (prompt for prompt in prompts if prefix[: len(prompt)] == prompt)
            spoken[prefix[len(prompt) :]] += times
    assert spoken == Counter(record.ids[: span.end] for record, span in run.corrections)


def test_rollouts_are_32_groups_of_16_by_the_weights_of_update_0(run):
    assert [record.row for record in run.records] == list(range(512))
    assert [record.group for record in run.records] == [row // 16 for row in range(512)]
    assert [record.role for record in run.records] == ([Role.CONTROL] * 8 + [Role.INTERVENED] * 8) * 32
    assert {record.stop for record in run.records} == {StopReason.END}
    authors = {(span.author, span.weight_version) for record in run.records for span in record.spans}
    assert authors == {(Author.POLICY, "update-0"), (Author.INTERVENTION, JUDGE)}


def test_the_judge_answers_a_probe_and_reviews_the_intervened_alone(run):
    chats = [[m["content"] for m in body["messages"]] for body in run.bodies("/v1/chat/completions")]
    reviews = [user for system, user in chats if '"decision"' in system]
    assert "What is 17 + 25?" in reviews[0]
    assert len(reviews) == 1 + sum(len(record.reviews) for record in run.records)
    assert len(chats) - len(reviews) == len(run.corrections)
    for record in run.records:
        decisions = [recorded.review.decision for recorded in record.reviews]
        first = [Decision.REVISE] if len(record.spans) > 1 else []
        assert decisions == ([] if record.role is Role.CONTROL else [*first, Decision.KEEP])


def test_privileged_context_stays_with_the_data(run):
    assert SECRET not in json.dumps(run.bodies("/v1/chat/completions"))
    assert run.trainer.train_dataset[0]["privileged_context"].endswith(f"{SECRET}.")


def test_corrections_are_spliced_in_as_the_ids_of_their_text(run):
    assert 64 < len(run.corrections) < 192  # of 256, by the seeds
    for record, correction in run.corrections:
        before, _, after = record.spans
        assert (before.text, correction.text) == (FIRST_STEP, CORRECTION)
        assert list(record.ids[correction.start : correction.end]) == TOKENIZER.encode(CORRECTION)
        assert re.fullmatch(r"So \\boxed\{\d+\}\.", after.text)
        rejected = record.reviews[0]
        assert (rejected.cut, rejected.review.reason) == (correction.start, "the sum is wrong")
        assert re.fullmatch(r"So \\boxed\{\d+\}\.", rejected.discarded_text)
        assert after.text != rejected.discarded_text


def test_rewards_are_those_of_math_reward_and_controls_alone_make_the_baseline(run):
    for record in run.records:
        text = "".join(span.text for span in record.spans)
        right = rf"\boxed{{{total(record.prompt)}}}" in text
        assert (record.reward, record.reward_why) == ((1.0, "correct") if right else (0.0, "wrong"))
    for start in range(0, 512, 16):
        group = run.records[start : start + 16]
        baseline = sum(record.reward for record in group[:8]) / 8
        assert [record.advantage for record in group] == pytest.approx([r.reward - baseline for r in group])
        assert [record.reward for record in group[8:]] == [1.0] * 8  # every wrong sum was found


def test_the_adapter_learns_and_the_base_stays(run):
    after = weights(run.trainer)
    changed = {name for name in after if not torch.equal(after[name], run.before[name])}
    assert changed == {name for name in after if ".lora_B." in name} != set()  # A has no gradient while B is zero
    assert {after[name].shape[1] for name in changed} == {32}
    saved = load_file(run.folder / "runs" / "demo" / "checkpoint-1" / "adapter_model.safetensors")
    assert saved.keys() == {name.replace(".default.", ".") for name in after if ".lora_" in name}


def test_no_connection_outlives_the_trainer(run):
    assert run.open_connections == [0, 0]


class SpeedGenerator:
    """A policy that gives a speed in kilograms until it is told otherwise."""

    weight_version = "script"

    async def stream(self, prefix_ids: Sequence[int], max_tokens: int, seed: int):
        told = "check the units" in TOKENIZER.decode(prefix_ids)
        text = "So it is 3 m/s.<|im_end|>" if told else "6 over 2 is 3.\n\nSo it is 3 kg.<|im_end|>"
        for token in TOKENIZER.encode(text)[:max_tokens]:
            yield SampledToken(token, None)


def test_a_judge_of_ones_own(tmp_path):
    names = {
        "KEEP": KEEP,
        "Revise": Revise,
        "Correction": Correction,
        "units_agree": lambda question, step: ("per second" in question) and ("kg" not in step),
        "unit_hint": lambda question: "metres per second. ",
    }
    exec(OWN_JUDGE, names)
    prompt = "How many metres per second are 6 m in 2 s?"
    trainer = MInTRLTrainer(
        qwen_model(),
        reward_funcs=lambda completions, **columns: [float(c[0]["content"].endswith("m/s.")) for c in completions],
        args=MInTRLConfig(
            str(tmp_path),
            **settings(max_steps=1, max_prompt_length=128)
            | {"chunk_tokens": 48, "correction_tokens": 64, "max_completion_length": 128},
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": prompt}]}] * 4),
        processing_class=qwen_tokenizer(),
        judge=names["UnitJudge"](),
        generator=SpeedGenerator(),
    )
    trainer.train()
    trainer.close()
    for record in RunFolder(tmp_path).rollouts():
        texts = [(span.author.value, span.text) for span in record.spans]
        if record.role is Role.CONTROL:
            assert texts == [("policy", "6 over 2 is 3.\n\nSo it is 3 kg.")]
        else:
            hint = "Wait, check the units: metres per second. "
            assert texts == [("policy", "6 over 2 is 3.\n\n"), ("intervention", hint), ("policy", "So it is 3 m/s.")]
            reviews = [recorded.review for recorded in record.reviews]
            assert [review.decision for review in reviews] == [Decision.REVISE, Decision.KEEP]
            assert reviews[0].reason == "units differ"
        assert record.reward == float(record.role is Role.INTERVENED)


def test_training_in_process_on_the_small_world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = IN_PROCESS.replace("max_steps=60, intervention_updates=60", "max_steps=1, intervention_updates=1")
    names = {}
    exec(text, names)
    folder = RunFolder("runs/small_world")
    records = list(folder.rollouts())
    assert len(records) == 128
    assert any(review.review.intervened for record in records for review in record.reviews)
    assert (folder.path / "model.safetensors").exists()
    assert names["trainer"].policy.generator.idle
