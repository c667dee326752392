"""MInTRL on real vLLM servers: the weights they have, the ids they give, and what the judge on them is.

One server lives through the whole file, since starting one takes most of a minute. Runs that train an adapter come
first: full weights replace the base model on the server for good.
"""

import json
import random
from collections import Counter
from contextlib import suppress

import pytest
import torch
from peft import LoraConfig
from transformers import AutoTokenizer

from mintrl_trl import NoVerdict, Problem, Revise
from mintrl_trl.cli import main
from mintrl_trl.judge_setup import build_judge
from mintrl_trl.judges.llm import LLMJudge
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.doors import TokenText
from mintrl_trl.rollouts.loop import shared_loop
from mintrl_trl.rollouts.rollout import Author

from .recorder import Recorder
from .runs import Comparing, HalfRejects, assert_streamed, make_trainer, trainer_logps
from .server import MODEL, ROOT, RealServer

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]

NATS = 1e-3  # how far two implementations in float32 may be apart
MOVED = 1e-2  # how far an update moves the same numbers, at least
ADAPTER = LoraConfig(r=8, target_modules="all-linear")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RealServer(tmp_path_factory.mktemp("server") / "server.log") as real:
        real.wait()
        yield real


def policy_versions(folder) -> list[tuple[int, set[str]]]:
    """For each update, the weights that its policy tokens are by."""
    versions: dict[int, set[str]] = {}
    for record in RunFolder(folder).rollouts():
        spans = (span for span in record.spans if span.author is Author.POLICY)
        versions.setdefault(record.update, set()).update(span.weight_version for span in spans)
    return sorted(versions.items())


def check_run(reward: Comparing, folder) -> None:
    assert len(reward.apart) == 2
    assert max(reward.apart) < NATS
    assert reward.moved[1] > MOVED
    assert policy_versions(folder) == [(1, {"update-0"}), (2, {"update-1"})]
    authors = Counter(span.author for record in RunFolder(folder).rollouts() for span in record.spans)
    assert authors[Author.INTERVENTION] > 0
    apart = [(line["mismatch/kl"], line["mismatch/max"]) for line in RunFolder(folder).metrics() if "loss" in line]
    assert len(apart) == 2
    assert all(kl < NATS**2 and largest < NATS for kl, largest in apart), apart


def test_the_doctor_has_nothing_to_change(server, tmp_path, capsys):
    """A recipe with its judge on the policy's server, as it is started: found right, by questions alone."""
    recipe = tmp_path / "recipe.yaml"
    settings = {
        "task": "math",
        "dataset": str(ROOT / "recipes" / "data" / "gsm8k_train_200.jsonl"),
        "model_name_or_path": MODEL,
        "output_dir": str(tmp_path / "run"),
        "use_vllm": True,
        "vllm_server_base_url": server.url,
        "judge": "self",
        "use_peft": True,
        "lora_r": 8,
        "use_cpu": True,
        "dtype": "float32",
        "max_prompt_length": 512,
        "max_completion_length": 512,
    }
    recipe.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items()))
    assert main(["doctor", "--config", str(recipe)]) == 0
    out = capsys.readouterr().out
    for said in ("same tokenizer", "arrive as adapters", "computes in float32", "held to a pattern", "very tokens"):
        assert said in out
    assert main(["doctor", "--config", str(recipe), "--max_completion_length", "4096", "--lora_r", "16"]) == 1
    out = capsys.readouterr().out
    assert "restart it with --max-model-len" in out
    assert "adapters of rank 8 at most, and lora_r is 16" in out


def test_an_adapter_on_the_server_and_the_base_model_beside_it_as_judge(server, tmp_path):
    """Two updates in `lora` mode; then a self-judge on the same server answers from the base weights."""
    reward = Comparing([server])
    with Recorder(server.url) as recorder:
        trainer = make_trainer(tmp_path, recorder.url, reward, peft_config=ADAPTER, judge="self")
        trainer.train()
        check_run(reward, tmp_path)
        records = list(RunFolder(tmp_path).rollouts())
        for record in records:
            prompt = record_prompt(trainer, record)
            asked = [one for one in recorder.completions() if one.body["prompt"][: len(prompt)] == prompt]
            assert_streamed(record, asked, prompt)
        assert len(records) == 8

        recorder.exchanges.clear()
        policy = trainer.policy
        judge = build_judge(trainer, None, policy.generator, policy.vocabulary, policy.served, starts_as_base=True)
        shared_loop().run(judge.probe())
        accepted = TokenText("17 + 25 is", trainer.processing_class("17 + 25 is")["input_ids"])
        problem = Problem("What is 17 + 25?", privileged_context="Add the tens first.")
        correction = shared_loop().run(judge.intervene(problem, accepted, Revise(0, "slow"), 8, seed=1))
        shared_loop().run(judge.aclose())
        answer = recorder.exchanges[-1]
        assert answer.body["model"] == MODEL != trainer.policy.generator.model
        assert list(correction.ids) == answer.ids[: len(correction.ids)]
        ids = [*answer.prompt_ids, *correction.ids]
        told = torch.tensor(correction.logps)
        with trainer.accelerator.unwrap_model(trainer.model).disable_adapter():
            base = trainer_logps(trainer, ids)[-len(told) :]
        trained = trainer_logps(trainer, ids)[-len(told) :]
        assert (told - base).abs().max() < NATS
        assert (told - trained).abs().max() > NATS
        trainer.close()


def record_prompt(trainer, record) -> list[int]:
    """The prompt ids of a recorded rollout: those of the row whose text it shows."""
    for row in trainer.train_dataset:
        ids = trainer.processing_class.apply_chat_template(
            row["prompt"], add_generation_prompt=True, return_dict=False, enable_thinking=False
        )
        if trainer.processing_class.decode(ids, skip_special_tokens=True) == record.prompt:
            return list(ids)
    raise AssertionError(f"no row has the prompt {record.prompt!r}")


def test_full_weights_on_two_servers(server, tmp_path):
    """Two updates in `checkpoint` mode: both servers have the trainer's weights and sample half of the rollouts."""
    with RealServer(tmp_path / "second.log") as second:
        second.wait()
        reward = Comparing([server, second])
        with Recorder(server.url) as one, Recorder(second.url) as other:
            trainer = make_trainer(tmp_path / "run", f"{one.url},{other.url}", reward)
            trainer.train()
            check_run(reward, tmp_path / "run")
            for record in RunFolder(tmp_path / "run").rollouts():
                prompt = record_prompt(trainer, record)
                assert_streamed(record, [*one.completions(), *other.completions()], prompt)
            begun = [sum(len(asked.body["prompt"]) == len(prompt) for asked in r.completions()) for r in (one, other)]
            assert begun == [4, 4]
            trainer.close()


class KillsTheServer(HalfRejects):
    """Its first review in the second update kills the server and starts it again, while all streams are open."""

    def __init__(self, server: RealServer):
        self.server, self.trainer, self.kills = server, None, 0

    async def review(self, problem, steps, first_new, *, seed):
        if self.trainer.state.global_step == 1 and not self.kills:
            self.kills += 1
            self.server.kill()
            self.server.start()
        return await super().review(problem, steps, first_new, seed=seed)


def test_a_server_that_is_killed_in_the_middle_of_rollouts(server, tmp_path):
    """The run finishes, and each token of each rollout is by the trainer's weights, before the kill and after it."""
    judge, apart = KillsTheServer(server), []
    with Recorder(server.url) as recorder:

        def compare_tokens():
            for exchange in recorder.completions():
                count = len(exchange.ids)
                assert len(exchange.logps) == count
                if count:
                    ids = [*exchange.body["prompt"], *exchange.ids]
                    trained = trainer_logps(reward.trainer, ids)[-count:]
                    apart.append((trained - torch.tensor(exchange.logps)).abs().max().item())
            checked.extend(recorder.completions())
            recorder.exchanges.clear()

        checked = []
        reward = Comparing([server], compare_tokens)
        judge.trainer = trainer = make_trainer(
            tmp_path, recorder.url, reward, judge_object=judge, max_completion_length=40
        )
        trainer.train()
        check_run(reward, tmp_path)
        for record in RunFolder(tmp_path).rollouts():
            assert_streamed(record, checked, record_prompt(trainer, record))
        trainer.close()
    assert judge.kills == 1
    assert trainer.policy.generator.recovery.restored == 1
    assert max(apart) < NATS


def test_reviews_find_what_was_kept_in_the_cache_of_the_server(server):
    """Chunks of 512 tokens, four reviews that all say Keep: most of what stands need not be read again."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    numbers, steps, shares = random.Random(0), [], []
    with Recorder(server.url) as recorder:
        judge = LLMJudge(MODEL, f"{recorder.url}/v1", max_tokens=4)
        for _ in range(4):
            first_new, tokens = len(steps), 0
            while tokens < 512:
                left, right = numbers.randrange(1000), numbers.randrange(1000)
                steps.append(f"We add {left} and {right}, which makes {left + right}, and go on with that number.\n\n")
                tokens += len(tokenizer(steps[-1])["input_ids"])
            with suppress(NoVerdict):  # four tokens are none
                shared_loop().run(judge.review(Problem("What is the sum?"), steps, first_new, seed=0))
            asked = recorder.exchanges[-1]
            text = tokenizer.apply_chat_template(asked.body["messages"], add_generation_prompt=True, tokenize=False)
            standing = len(tokenizer(text[: text.index(steps[first_new].strip())])["input_ids"])
            shares.append(asked.usage["prompt_tokens_details"]["cached_tokens"] / standing)
        shared_loop().run(judge.aclose())
    print("from the cache, in reviews 1 to 4:", *(f"{share:.1%}" for share in shares))
    assert min(shares[1:]) >= 0.8
