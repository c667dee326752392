"""Trainers of a tiny Qwen3 on a policy server that is scripted, for the tests of training against servers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby

from datasets import Dataset
from transformers import TrainerCallback

from mintrl_trl import MInTRLConfig, MInTRLTrainer
from tests.fake_vllm import FakeVLLM, events
from tests.tiny_qwen import qwen_tokenizer
from tests.trainers import RejectLastStep, parity_reward, settings

MODEL = "tiny/qwen3"
END = qwen_tokenizer().eos_token_id
COMPLETIONS, RELOAD, LOAD_ADAPTER = "/v1/completions", "/collective_rpc", "/v1/load_lora_adapter"
PROMPTS = [{"prompt": f"{i}+1="} for i in range(8)]


def write(body: dict) -> list[dict]:
    """Letters, of a number that depends on the seed, and the end."""
    length = min(body["max_tokens"], 5 + body["seed"] % 4)
    return events(body["prompt"], [*range(65, 64 + length), END], size=length)


class Snapshots(TrainerCallback):
    """The weights before training and after each update."""

    def __init__(self):
        self.taken = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.taken.append({name: value.detach().clone() for name, value in model.named_parameters()})

    on_step_end = on_train_begin


def posts(server: FakeVLLM) -> list[str]:
    """Paths of what the server was told, the completions of one batch as one."""
    paths = [seen.path for seen in server.seen if seen.method == "POST"]
    return [path for path, group in groupby(paths) for _ in ([0] if path == COMPLETIONS else group)]


@contextmanager
def served_trainers(url: str) -> Iterator[Callable[..., MInTRLTrainer]]:
    """Makes trainers on the server at `url`, and closes them."""
    trainers = []

    def make(
        folder, *, judge_object="reject", reward=parity_reward, rows=PROMPTS, peft_config=None, **overrides
    ) -> MInTRLTrainer:
        overrides = {"use_vllm": True, "vllm_server_base_url": url, "max_completion_length": 24} | overrides
        trainer = MInTRLTrainer(
            MODEL,
            reward_funcs=reward,
            args=MInTRLConfig(str(folder), **settings(**overrides)),
            train_dataset=Dataset.from_list(rows),
            judge=RejectLastStep() if judge_object == "reject" else judge_object,
            peft_config=peft_config,
        )
        trainers.append(trainer)
        return trainer

    yield make
    for trainer in trainers:
        trainer.close()
