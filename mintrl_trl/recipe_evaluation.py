"""The settings of evaluation during training on maths and code: on what, how long, how often.

It owns names and ranges, and reads no problem: `tasks` does. Invariant: evaluation during training draws with its own
seeds and its own lengths, so none of these settings changes what is trained.
"""

from dataclasses import dataclass, field, fields

from .errors import ConfigError


@dataclass
class EvaluationArguments:
    """What a recipe says about evaluation, besides how many samples and how often."""

    eval_dataset: str | None = field(
        default=None,
        metadata={"help": "Evaluation rows of your own: a JSONL file. Not for `chains`, which has `eval_problems`."},
    )
    eval_benchmarks: list[str] | None = field(
        default=None,
        metadata={
            "help": "Benchmarks to evaluate on, as `mintrl eval` knows them: `aime_2025`, `gsm8k`, `humaneval_plus` "
            "and so on, or `math` or `code` for the paper's three. Each is reported by itself."
        },
    )
    eval_data: str | None = field(
        default=None,
        metadata={"help": "Folder with the benchmarks' files. Unset: what the environment variable MINTRL_DATA names."},
    )
    eval_limit: int | None = field(
        default=None, metadata={"help": "Use only this many problems of each benchmark or file (at least 1)."}
    )
    eval_max_completion_length: int | None = field(
        default=None,
        metadata={"help": "Tokens of an evaluated response at most. Unset: as in training. The paper's: 32768."},
    )

    @property
    def evaluates_files(self) -> bool:
        """Whether anything is named to evaluate on, besides the small world's problems."""
        return bool(self.eval_dataset or self.eval_benchmarks)

    def check_evaluation(self, task: str) -> None:
        """Refuse numbers out of range, and files and benchmarks for the small world.

        Raises:
            ConfigError: Names the setting.
        """
        for name in ("eval_limit", "eval_max_completion_length"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(name, value, "a whole number of at least 1", f"set `{name}: 100`")
        for setting in fields(EvaluationArguments):
            value = getattr(self, setting.name)
            if setting.name == "eval_max_completion_length" or value in (None, []):
                continue
            if task == "chains":
                allowed = "nothing for `task: chains`"
                raise ConfigError(setting.name, value, allowed, "set `eval_problems: 200`, or remove it")
            if setting.name in ("eval_data", "eval_limit") and not self.evaluates_files:
                fix = "set `eval_benchmarks: [gsm8k]`, or `eval_dataset`"
                raise ConfigError(setting.name, value, "nothing where nothing is evaluated on", fix)
