"""What the tests of refusals share: rows, a trainer whose model does not exist, and what a message has to say."""

from datasets import Dataset

from mintrl_trl import ConfigError, MInTRLConfig, MInTRLTrainer
from tests.tiny import tiny_tokenizer
from tests.trainers import AlwaysKeep, parity_reward, settings

NEVER_LOADED = "nobody/no-such-model"  # loading it would fail with another error


def rows(*prompts, **columns) -> Dataset:
    """A data set with these prompts, and columns of one value each."""
    return Dataset.from_list([{"prompt": prompt} | columns for prompt in prompts or ("1+1=",)])


def build(output_dir, *, overrides=None, **arguments) -> MInTRLTrainer:
    """The trainer's constructor with a model that does not exist."""
    given_arguments = {
        "model": NEVER_LOADED,
        "reward_funcs": parity_reward,
        "args": MInTRLConfig(str(output_dir), **settings(**(overrides or {}))),
        "train_dataset": rows("1+1=", "2+2="),
        "processing_class": tiny_tokenizer(),
        "judge": AlwaysKeep(),
    }
    return MInTRLTrainer(**given_arguments | arguments)


def assert_says(error: ConfigError, field: str, shown: str, allowed: str, fix: str) -> None:
    """The message names field, value, allowed values and fix, on one line."""
    message = str(error)
    assert "\n" not in message
    head, _, rest = message.partition(". Allowed: ")
    named_allowed, _, named_fix = rest.partition(". Fix: ")
    assert head.startswith(f"`{field}` is ")
    assert shown in head
    assert allowed in named_allowed
    assert fix in named_fix
