"""Every setting of a run: the paper's words and values on top of TRL's `GRPOConfig`.

It owns the fields, their defaults and help texts, what is derived from them, and the small frozen settings handed to
the core. It never loads a model, opens a connection or holds a secret: of an API key it knows only the name of the
environment variable. Invariant: a config that was constructed has passed every check that needs no model and no
server, and TRL's own batch sizes agree with ours.
"""

import os
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available
from trl import GRPOConfig

from .batch_plan import DERIVED_SIZES, BatchPlan, Derived, plan_batches
from .config_checks import addresses, check_fields, check_keys
from .config_combinations import check_combinations, resolve_generation
from .config_hub import HubConfig
from .config_judge import JudgeConfig, setting
from .errors import ConfigError
from .objective.loss import Anchor, RegressionSettings
from .rollouts.sampler import SamplerSettings
from .rollouts.schedule import InterventionBudget, Schedule, request_seed
from .versions import check_versions

check_versions()

__all__ = ["MInTRLConfig", "check_keys"]


class _MergedKwargs(dict):
    """Template arguments with `enable_thinking` merged in by the config, so that a copy merges its own again."""


@dataclass
class MInTRLConfig(JudgeConfig, HubConfig, GRPOConfig):
    r"""
    Configuration of [`MInTRLTrainer`]: TRL's [`~trl.GRPOConfig`] plus the settings of MInTRL.

    Every setting is described in the help text of its field, with unit and range; a recipe's `--help` prints them.
    Those of the judge stand in `config_judge.py`, those of the hub in `config_hub.py`.
    TRL's and transformers' own settings keep their names and meaning. What differs:

    - **Batch sizes are derived.** `num_generations`, `gradient_accumulation_steps`, `steps_per_generation` and
      `generation_batch_size` follow from `prompts_per_update`, `num_control`, `num_intervened` and
      `updates_per_generation`; a value that agrees is accepted, another is refused. `per_device_train_batch_size`, if
      unset, is the largest that divides the rows of an update evenly, up to 8 rows and 32,768 padded tokens.
    - **Defaults of the paper** replace TRL's: `learning_rate` 1e-6 and constant, `weight_decay` 0.01, `delta` 3.0,
      `max_steps` 500, `save_steps` 50, `logging_steps` 1, `max_completion_length` 16384, no dropout, no importance
      correction.
    - **`use_vllm=True`** means a vLLM server (`vllm_mode="server"`). The choice is kept in `generation`; `use_vllm`
      itself reads False afterwards, because the rollouts come from this package's own client and TRL must open none.
    - **Settings of TRL's loss** (`loss_type`, `delta`, `beta`, `entropy_coef`, `top_entropy_quantile`, ...) act in the
      second phase, whose loss is TRL's; those that would never act are refused.
    - **`bf16`**, if unset, is on where a GPU supports it and off elsewhere.

    Raises:
        ConfigError: A setting, or a combination, cannot work. The message names field, value, allowed values and fix.

    Example:

    ```python
    >>> from mintrl_trl import MInTRLConfig

    >>> args = MInTRLConfig("runs/demo", anchor="const", kappa=-0.2)
    >>> args.schedule().group_size
    16

    ```
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*GRPOConfig._VALID_DICT_FIELDS, "judge_extra_body"]

    # --- Rollouts: prompts, groups, phases
    prompts_per_update: int = setting(32, "Prompts of one optimizer step, over all processes. At least 1.")
    num_control: int = setting(
        8, "Control rollouts per prompt: the policy alone; the baseline is made of their rewards. At least 1."
    )
    num_intervened: int = setting(
        8, "Rollouts per prompt that the judge reviews and may intervene on. At least 0; 0 needs no judge."
    )
    updates_per_generation: int = setting(
        1, "Optimizer steps that share one generated batch, each on its own share of the rollouts. At least 1."
    )
    intervention_updates: int = setting(
        200,
        "Optimizer steps with interventions (phase 1); TRL's GRPO loss on on-policy rollouts follows (phase 2). At "
        "least 0, and a multiple of updates_per_generation x num_iterations.",
    )
    reset_optimizer_at_switch: bool = setting(
        False, "Whether to clear the optimizer's state when phase 2 begins. The paper mentions no reset."
    )

    # --- Interventions
    chunk_tokens: int = setting(
        512, "Tokens the policy samples between two reviews (k). At least 1. The paper: math 512, code 128."
    )
    max_reviews: int = setting(
        4, "Reviews of one rollout at most (R); a Keep consumes one too. At least 0; 0 never intervenes."
    )
    correction_tokens: int = setting(64, "Tokens of one correction at most (h_max). From 1 to max_completion_length.")
    review_final_chunk: bool = setting(True, "Whether a chunk that ends the response is reviewed while reviews remain.")
    overlap_reviews: bool = setting(
        True, "Whether the policy goes on sampling while the judge reads. Changes the speed, never the rollouts."
    )

    # --- Objective of phase 1
    anchor: str = setting(
        "const",
        "What the log-probability of an intervention token is compared with: 'const' (kappa), 'proxy' (the policy that "
        "generated the batch) or 'judge' (the judge's own log-probability; kappa where it gives none).",
    )
    kappa: float = setting(
        -0.2, "Constant anchor of intervention tokens, in nats per token. Below 0. The paper: math -0.2, code -0.1."
    )
    baseline: str = setting(
        "control",
        "Rollouts that the baseline is made of: 'control' (the paper) or 'pooled' (all; biased by the judge).",
    )
    beta1: float | None = setting(
        None, "Temperature of the baseline's soft value, in units of reward. Above 0; unset means the plain mean."
    )
    beta2: float = setting(1e-3, "Weight of a rollout's log-ratio in the regression, in reward per nat. Above 0.")
    loss_scale: float | None = setting(None, "Factor on the loss of phase 1. Above 0; unset means 1, as in the paper.")

    phase2_importance_correction: bool = setting(
        False,
        "Phase 2: weight each token by its probability under the trainer over that under the server that sampled it, "
        "as the vllm_importance_sampling_* settings say. Costs a forward. Phase 1 is never corrected.",
    )

    # --- Prompts and lengths
    max_prompt_length: int = setting(
        2048, "Rows whose rendered prompt is longer are dropped at start-up and counted. In tokens, at least 1."
    )
    max_completion_length: int = setting(16384, "Response length at most, corrections included. In tokens, at least 1.")
    enable_thinking: bool = setting(
        False, "Passed to the chat template (Qwen3). Merged into chat_template_kwargs, which must not contradict it."
    )

    # --- Where policy tokens come from
    generation: str | None = setting(
        None,
        "'local' (in process) or 'vllm' (a vLLM server). Unset: 'vllm' with use_vllm, else 'local'.",
        "local",
        "vllm",
    )
    local_max_batch: int = setting(256, "Rows that the local generator decodes at once, at most. At least 1.")
    max_concurrent_rollouts: int = setting(512, "Rollouts in flight at once, per process. At least 1.")
    weight_sync: str = setting(
        "auto",
        "How new weights reach the vLLM server: 'lora' (adapter files), 'checkpoint' (a saved folder it reloads), "
        "'nccl' (full weights from GPU to GPU; needs vLLM in the trainer's environment, too) or 'auto' (lora with a "
        "PEFT adapter, else checkpoint).",
        "auto",
        "lora",
        "checkpoint",
        "nccl",
    )
    weight_sync_dir: str | None = setting(
        None, "Folder for those files, readable by the server under the same path. Unset: inside output_dir."
    )
    allow_cut_sampling: bool = setting(
        False,
        "Allow top_p below 1, top_k, min_p and repetition_penalty on the vLLM server. The log-probabilities of the "
        "loss ignore the cut, so the objective is then biased.",
    )

    # --- Tolerated failures
    no_verdict_limit: float = setting(
        0.2, "Share of reviews without a usable verdict, over the window, above which the run stops. From 0 to 1."
    )
    no_verdict_window: int = setting(200, "Number of latest reviews that the share is taken over. At least 1.")
    unscored_limit: float = setting(
        0.2, "Share of a batch's rollouts without any reward above which the run stops. From 0 to 1."
    )
    mismatch_limit: float | None = setting(
        0.02,
        "KL between sampler and trainer on sampled tokens (`mismatch/kl`), in nats per token, above which a warning is "
        "logged. Above 0; unset means no warning.",
    )

    # --- Updates and checkpoints
    lean_updates: bool = setting(
        True,
        "Forward no padding that can be left out and no row without gradient, and deal rows evenly to micro-batches "
        "and processes. Same gradients. False: TRL's own layout, bit for bit.",
    )
    entropy_sample: int = setting(
        8,
        "With lean_updates: rollouts of an update, in fixed places, that the entropy is measured on. At least 0.",
    )
    dry_run_worst_case: bool = setting(
        False,
        "Before any rollout, run one update at full prompt and completion length, report its peak memory, and change "
        "no weight.",
    )
    resumable_checkpoints: int = setting(
        2,
        "Latest checkpoints that keep all a run needs to go on; older ones keep a bfloat16 model alone. At least 1.",
    )
    allow_changed_resume: bool = setting(
        False, "Go on from a checkpoint although data, judge, seed or objective differ from those of its run."
    )
    set_aside_older_run: bool = setting(
        False, "Move an older run found in output_dir into a folder previous-N there, instead of refusing to start."
    )

    # --- Display
    show_progress: bool | None = setting(
        None, "Whether to show a live line while rollouts are made; a log line now and then where there is no terminal."
    )
    stall_seconds: float = setting(
        120.0, "Time in which nothing moves, after which a warning names what is waited for. In seconds, above 0."
    )

    # --- TRL's and transformers' settings with other defaults, or with None for "not set by the user"
    learning_rate: float = setting(1e-6, "Initial learning rate of AdamW. At least 0.")
    lr_scheduler_type: str = setting("constant", "Learning rate schedule, by transformers' names.")
    weight_decay: float = setting(0.01, "Weight decay of AdamW. At least 0.")
    delta: float | None = setting(
        3.0, "Phase 2: upper bound of the probability ratio (dual clip). Above 1 + epsilon; unset means no bound."
    )
    max_steps: int = setting(
        500,
        "Optimizer steps of the run, phase 1 included; -1 to go by num_train_epochs. With checkpoints a multiple of "
        "updates_per_generation x num_iterations.",
    )
    save_steps: float = setting(
        50, "Optimizer steps between checkpoints, a multiple of updates_per_generation x num_iterations."
    )
    logging_steps: float = setting(1, "Optimizer steps between two log lines; a checkpoint ends one, too.")
    disable_dropout: bool = setting(
        True, "Rollouts are sampled without dropout; a model that would still drop out in training is refused."
    )
    vllm_server_base_url: str | None = setting(
        None,
        "Address of the policy's vLLM server, such as http://localhost:8000; several with commas between them. Unset: "
        "made of vllm_server_host and vllm_server_port.",
    )
    vllm_mode: str = setting("server", "Only 'server': rollouts come from a vLLM server of their own.")
    vllm_importance_sampling_correction: bool = setting(
        False, "Must stay off: it would remove the gradient of every rollout that holds a correction."
    )
    vllm_importance_sampling_mode: str = setting(
        "token_truncate",
        "With phase2_importance_correction: 'token_truncate', 'token_mask', 'sequence_truncate' or 'sequence_mask'. "
        "Over thousands of tokens the ratio of a sequence says little.",
    )
    per_device_train_batch_size: int | None = setting(
        None, "Rows of one forward pass per process. Unset: derived, at most 8 rows and 32768 padded tokens."
    )
    gradient_accumulation_steps: int | None = setting(None, "Derived from prompts_per_update; leave unset.")
    num_generations: int | None = setting(None, "Derived: num_control + num_intervened; leave unset.")
    steps_per_generation: int | None = setting(None, "Derived from updates_per_generation; leave unset.")
    generation_batch_size: int | None = setting(None, "Derived from updates_per_generation; leave unset.")
    num_generations_eval: int | None = setting(
        None, "Rollouts per prompt of an evaluation. Unset: the largest up to the group size that fits its batch."
    )

    def __post_init__(self):
        for name in DERIVED_SIZES:  # a copy (`dataclasses.replace`) brings ours along; they are worked out again
            if isinstance(getattr(self, name), Derived):
                setattr(self, name, None)
        check_fields(self)
        local_by_name = self.generation == "local"
        self.generation, self.use_vllm = resolve_generation(self), False
        self.judge = self.judge or ("llm" if self.judge_base_url else None)
        check_combinations(self, local_by_name=local_by_name)
        self._resolve_precision()

        given = {name: getattr(self, name) for name in DERIVED_SIZES}
        processes = int(os.environ.get("WORLD_SIZE", 1)) if "LOCAL_RANK" in os.environ else 1
        self._set_batch_sizes(given, processes)
        self.generation_batch_size = None  # TRL takes one of two sizes and works out the other
        super().__post_init__()
        self._set_batch_sizes(given, self.world_size)
        self._check_extra_body()
        self._merge_thinking()

    def _set_batch_sizes(self, given: dict[str, int | None], num_processes: int) -> None:
        plan = self._plan(given, num_processes)
        for name in DERIVED_SIZES:
            setattr(self, name, given[name] or Derived(getattr(plan, name)))

    def batch_plan(self, num_processes: int) -> BatchPlan:
        """How the rows of an update would be spread over so many processes.

        Raises:
            ConfigError: They do not divide evenly; the message shows the arithmetic and settings that work.
        """
        sizes = {name: getattr(self, name) for name in DERIVED_SIZES}
        given = {name: None if isinstance(size, Derived) else size for name, size in sizes.items()}
        return self._plan(given, num_processes)

    def _plan(self, given: dict[str, int | None], num_processes: int) -> BatchPlan:
        return plan_batches(
            prompts_per_update=self.prompts_per_update,
            num_control=self.num_control,
            num_intervened=self.num_intervened,
            updates_per_generation=self.updates_per_generation,
            num_processes=num_processes,
            tokens_per_row=self.max_prompt_length + self.max_completion_length,
            eval_rows_per_device=self.per_device_eval_batch_size,
            evaluates=self.eval_strategy != "no",
            given=given,
        )

    def _resolve_precision(self) -> None:
        """`bf16`: on where a GPU supports it, off elsewhere; float32 is right, and much faster, on a CPU."""
        supported = not self.use_cpu and (is_torch_bf16_gpu_available() or is_torch_xla_available())
        if self.bf16 and not supported and not self.use_cpu:
            raise ConfigError("bf16", True, "unset or false: no GPU here supports it", "remove bf16")
        if self.bf16 is None:
            self.bf16 = supported and not self.fp16
        # Upstream warns when only the old name of this setting is set, and TRL's own default sets it.
        if getattr(self, "activation_checkpointing", False) is None:
            self.activation_checkpointing = self.gradient_checkpointing

    def _merge_thinking(self) -> None:
        kwargs, thinking = self.chat_template_kwargs or {}, self.enable_thinking
        if not isinstance(kwargs, dict):
            raise ConfigError("chat_template_kwargs", kwargs, "a mapping", 'write it as {"name": value}')
        if isinstance(kwargs, _MergedKwargs):
            kwargs = {name: value for name, value in kwargs.items() if name != "enable_thinking"}
        if kwargs.get("enable_thinking", thinking) != thinking:
            allowed = f"the same as in chat_template_kwargs, which says {kwargs['enable_thinking']}"
            fix = f"set enable_thinking={kwargs['enable_thinking']}, and leave it out of chat_template_kwargs"
            raise ConfigError("enable_thinking", thinking, allowed, fix)
        self.chat_template_kwargs = _MergedKwargs(kwargs, enable_thinking=thinking)

    def to_dict(self) -> dict[str, Any]:
        """Settings by name, as plain values that JSON and YAML can hold; a config built from them is equal."""
        values = super().to_dict()
        values["chat_template_kwargs"] = dict(values["chat_template_kwargs"])
        return values | {name: int(values[name]) for name in DERIVED_SIZES}

    # --- The small frozen settings handed to the core

    @property
    def needs_judge(self) -> bool:
        """Whether any rollout of the run is reviewed."""
        return self.num_intervened > 0 and self.max_reviews > 0 and self.intervention_updates > 0

    @property
    def server_urls(self) -> tuple[str, ...]:
        """Roots of the vLLM servers that sample the policy; none with local generation."""
        if self.generation != "vllm":
            return ()
        return addresses(self.vllm_server_base_url or f"http://{self.vllm_server_host}:{self.vllm_server_port}")

    @property
    def updates_per_batch(self) -> int:
        """Optimizer steps that one generated batch is used for."""
        return self.updates_per_generation * self.num_iterations

    def schedule(self) -> Schedule:
        """Phases and roles."""
        return Schedule(self.num_control, self.num_intervened, self.intervention_updates)

    def budget(self) -> InterventionBudget:
        """Limits of one rollout, in tokens and reviews."""
        return InterventionBudget(
            chunk_tokens=self.chunk_tokens,
            max_reviews=self.max_reviews,
            correction_tokens=self.correction_tokens,
            max_completion_tokens=self.max_completion_length,
            review_final_chunk=self.review_final_chunk,
        )

    def sampler_settings(self, evaluation: bool = False) -> SamplerSettings:
        """Settings of the rollout sampler.

        Args:
            evaluation (`bool`, *optional*, defaults to `False`):
                For evaluation: no reviews at all, and seeds of its own.
        """
        budget, run_seed = self.budget(), self.seed
        if evaluation:
            budget, run_seed = replace(budget, max_reviews=0), request_seed(self.seed, 0, 0, 0, "eval")
        return SamplerSettings(
            budget=budget,
            run_seed=run_seed,
            overlap_reviews=self.overlap_reviews,
            max_concurrent_rollouts=self.max_concurrent_rollouts,
            max_concurrent_reviews=self.max_concurrent_reviews,
            no_verdict_limit=self.no_verdict_limit,
            no_verdict_window=self.no_verdict_window,
            pauses_reviews=self.judge_failure == "continue_on_policy",
            review_timeout_seconds=float(self.review_timeout_seconds),
        )

    def regression_settings(self) -> RegressionSettings:
        """Settings of the loss of phase 1."""
        return RegressionSettings(
            beta2=float(self.beta2), anchor=Anchor(self.anchor), kappa=float(self.kappa), loss_scale=self.loss_scale
        )
