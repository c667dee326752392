"""Baselines that train: losses known in advance on models that are tables, the run folder, and going on."""

import json
import math
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from datasets import Dataset

from mintrl_trl.baselines.on_policy import trl_arguments
from mintrl_trl.baselines.opd import OPDArguments, OPDTrainer
from mintrl_trl.baselines.sft_grpo import IGNORED, SFTArguments, SupervisedTrainer
from mintrl_trl.baselines.teacher import teacher_generator
from mintrl_trl.baselines.trajectories import collect_trajectories
from mintrl_trl.config import MInTRLConfig
from mintrl_trl.data import chains
from mintrl_trl.errors import CheckpointError, ConfigError
from mintrl_trl.reporting.run_folder import RunFolder
from tests.bigram import bigram_model
from tests.fake_vllm import FakeVLLM, events
from tests.tiny import tiny_model, tiny_tokenizer
from tests.tiny_qwen import cached_qwen, qwen_tokenizer

pytestmark = pytest.mark.slow
SERVED = "tiny/qwen3"
RECIPES = Path(__file__).parents[1] / "recipes"
ID = {text: chains.encode(text)[0] for text in "0123#?"}
P_DIGITS = chains.encode(chains.DIGITS)
P = {ID["0"]: 0.7, ID["1"]: 0.2, ID["2"]: 0.1}  # the policy, always
T = {ID["0"]: 0.5, ID["1"]: 0.25, ID["2"]: 0.25}  # the teacher after a digit
FIRST = {ID["0"]: 0.1, ID["1"]: 0.1, ID["2"]: 0.8}  # the teacher after its prompt


def kl(p: dict[int, float], t: dict[int, float]) -> float:
    return sum(p[i] * math.log(p[i] / t[i]) for i in p)


def saved(model, folder: Path, end_of_prompt: str = "?") -> str:
    """The folder of a model, whose chat template ends a prompt in its own way."""
    tokenizer = chains.build_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}" + end_of_prompt
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def config(folder: Path, **settings) -> MInTRLConfig:
    plain = {
        "intervention_updates": 0,
        "num_control": 4,
        "num_intervened": 0,
        "prompts_per_update": 2,
        "max_steps": 1,
        "max_prompt_length": 16,
        "max_completion_length": 3,
        "per_device_train_batch_size": 4,  # two micro-batches
        "gradient_checkpointing": False,
        "learning_rate": 0.0,
        "save_strategy": "no",
        "show_progress": False,
        "use_cpu": True,
        "report_to": "none",
    }
    return MInTRLConfig(str(folder), **plain | settings)


def test_opd_compares_each_token_after_each_models_own_prompt(tmp_path):
    policy = saved(bigram_model({-1: P}), tmp_path / "policy")
    teacher = saved(bigram_model({-1: T, ID["#"]: FIRST}), tmp_path / "teacher", end_of_prompt="#")
    settings = config(tmp_path / "run")
    trainer = OPDTrainer(
        policy,
        settings=settings,
        reward=lambda completions, **_: [0.0] * len(completions),
        method={"name": "opd"},
        args=trl_arguments(OPDArguments, settings, beta=1.0, teacher_model_init_kwargs={"dtype": "float32"}),
        teacher_model=teacher,
        teacher_tokenizer=chains.build_tokenizer().from_pretrained(teacher),
        teacher_template_kwargs={},
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in ("8", "801")]),
    )
    trainer.train()
    trainer.close()
    line = next(RunFolder(tmp_path / "run").metrics())
    assert kl(P, T) == pytest.approx(0.09927278218459154, rel=1e-12)
    assert line["loss"] == pytest.approx((kl(P, FIRST) + 2 * kl(P, T)) / 3, rel=1e-4)
    assert line["entropy/policy"] == pytest.approx(-sum(p * math.log(p) for p in P.values()), rel=1e-4)
    assert line["lengths/control"] == 3
    records = list(RunFolder(tmp_path / "run").rollouts())
    assert len(records) == 2 * 4


@pytest.mark.parametrize(
    ("more", "loss"),
    [
        ([], 1.2333333333333334),
        ([{"input_ids": [ID["?"], ID["0"]], "labels": [IGNORED, ID["0"]]}], (0.5 + 1.2 + 2.0 + 0.5) / 4),
    ],
    ids=["one response", "with a padded one: mean over all tokens"],
)
def test_sft_is_the_mean_negative_log_likelihood_of_the_response(tmp_path, more, loss):
    a, b, c, d = ID["?"], ID["0"], ID["1"], ID["2"]
    table = {-1: {a: 1.0}}
    for token, following, logp in ((a, b, -0.5), (b, c, -1.2), (c, d, -2.0)):
        table[token] = {following: math.exp(logp), a: 1 - math.exp(logp)}
    folder = saved(bigram_model(table), tmp_path / "model")
    settings = config(tmp_path / "run")
    args = trl_arguments(
        SFTArguments,
        settings,
        loss_type="nll",
        max_length=None,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    rows = [{"input_ids": [c, a, b, c, d], "labels": [IGNORED, IGNORED, b, c, d]}, *more]
    trainer = SupervisedTrainer(
        evaluated=False,
        model=folder,
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=chains.build_tokenizer(),
    )
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses == [pytest.approx(loss, rel=1e-4)]


# Servers


def letters(body: dict) -> list[dict]:
    """Ten letters and the end."""
    ids = [*range(65, 75), qwen_tokenizer().eos_token_id][: body["max_tokens"]]
    return events(body["prompt"], ids, size=4, finish="stop" if len(ids) == 11 else "length")


@pytest.fixture
def server():
    with cached_qwen(SERVED), FakeVLLM(SERVED) as fake:
        fake.script = letters
        yield fake


def test_a_distilled_policy_is_sampled_from_its_vllm_server(tmp_path, server):
    settings = config(
        tmp_path / "run",
        use_vllm=True,
        vllm_server_base_url=server.url,
        max_steps=2,
        max_completion_length=24,
        learning_rate=1e-3,
    )
    trainer = OPDTrainer(
        SERVED,
        settings=settings,
        reward=lambda completions, **_: [float(len(text) > 5) for text in completions],
        method={"name": "opd"},
        args=trl_arguments(OPDArguments, settings, beta=1.0, teacher_model_init_kwargs={"dtype": "float32"}),
        teacher_model=SERVED,
        teacher_tokenizer=qwen_tokenizer(),
        teacher_template_kwargs={},
        train_dataset=Dataset.from_list([{"prompt": f"{i}+1="} for i in range(4)]),
    )
    trainer.train()
    trainer.close()
    lines = [line for line in RunFolder(tmp_path / "run").metrics() if "loss" in line]
    assert [line["rewards/control"] for line in lines] == [1.0, 1.0]
    records = list(RunFolder(tmp_path / "run").rollouts())
    assert len(records) == 2 * 2 * 4
    assert {span.weight_version for record in records for span in record.spans} == {"update-0", "update-1"}
    assert server.weights_path is not None  # those of the second update


def test_a_teacher_on_a_server_writes_the_trajectories(tmp_path, server):
    settings = config(tmp_path / "run", max_completion_length=24)
    with teacher_generator(SERVED, qwen_tokenizer(), settings, server.url) as (generator, vocabulary):
        kept = collect_trajectories(
            generator,
            vocabulary,
            [[48, 43]] * 3,
            [{"prompt": str(number)} for number in range(3)],
            lambda completions, **_: [1.0] * len(completions),
            tmp_path / "trajectories.jsonl",
            attempts=2,
            only_right=True,
            max_completion_tokens=24,
            seed=0,
            show_progress=False,
        )
    assert [item.prompt for item in kept] == [0, 1, 2]
    assert {item.ids for item in kept} == {(*range(65, 75), qwen_tokenizer().eos_token_id)}


# Recipes

SHORT = {
    "max_steps": 2,
    "prompts_per_update": 2,
    "per_device_train_batch_size": 16,
    "eval_problems": 4,
    "eval_samples": 2,
}
OF_EVERY_METHOD = {"rewards/control", "lengths/control", "grad_norm", "loss", "step/seconds", "share/rollout"}


def run_here(monkeypatch, folder: Path, recipe: str, **settings) -> RunFolder:
    monkeypatch.chdir(folder)
    flags = [word for name, value in (SHORT | settings).items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["train_math.py", "--config", str(RECIPES / f"{recipe}.yaml"), *flags])
    runpy.run_path(str(RECIPES / "train_math.py"))["main"]()
    return RunFolder(Path(settings.get("output_dir", f"runs/{recipe}")))


@pytest.mark.parametrize(
    ("recipe", "teacher"),
    [("chains_grpo", False), ("chains_sft_grpo", True), ("chains_opd", True), ("chains_opsd", False)],
    ids=["GRPO", "SFT+GRPO", "OPD", "OPSD"],
)
def test_every_method_leaves_the_same_run_folder(tmp_path, monkeypatch, capsys, recipe, teacher):
    settings = {"teacher_model": chains.base_model_path()} if teacher else {}
    folder = run_here(monkeypatch, tmp_path, recipe, **settings)
    assert capsys.readouterr().out.splitlines()[-1].startswith("RESULT pass@1 ")
    lines = [line for line in folder.metrics() if "loss" in line]
    assert [line["update"] for line in lines] == [1, 2]
    assert all(set(line) >= OF_EVERY_METHOD for line in lines)
    assert {"entropy/policy", "entropy/sample"} & set(lines[0])
    assert [line["update"] for line in folder.evaluations()] == [0, 2]
    assert len(list(folder.rollouts())) == 2 * 2 * 16
    assert json.loads((folder.path / "recipe.json").read_text())["method"] == recipe.removeprefix("chains_")
    assert (folder.path / "model.safetensors").exists()
    if recipe == "chains_opd":  # nothing can be learned from oneself
        assert [line["loss"] for line in lines] == [pytest.approx(0, abs=1e-6)] * 2


def test_a_stage_that_is_complete_is_not_done_again(tmp_path, monkeypatch, capsys):
    settings = {"teacher_model": chains.base_model_path(), "output_dir": "run", "sft_attempts": 1, "max_steps": 1}
    folder = run_here(monkeypatch, tmp_path, "chains_sft_grpo", **settings)
    stage = RunFolder(folder.path / "sft")
    facts = next(folder.metrics())
    assert facts["sft/tries"] == 2 >= facts["sft/trajectories"] >= 1
    assert facts["sft/updates"] == 1
    assert [line["update"] for line in stage.evaluations()] == [0, 1]
    assert next(folder.evaluations()) == next(stage.evaluations())
    written = (stage.path / "model" / "model.safetensors").stat().st_mtime_ns
    run_here(monkeypatch, tmp_path, "chains_sft_grpo", **settings)
    assert (stage.path / "model" / "model.safetensors").stat().st_mtime_ns == written
    run_here(monkeypatch, tmp_path, "chains_sft_grpo", **settings | {"sft_learning_rate": 2e-3})
    assert (folder.path / "sft-previous-1" / "model" / "model.safetensors").stat().st_mtime_ns == written
    assert (stage.path / "stage.json").exists()


def test_a_stage_that_was_interrupted_goes_on_from_its_checkpoint(tmp_path, monkeypatch, capsys):
    settings = {"teacher_model": chains.base_model_path(), "output_dir": "run", "sft_attempts": 1, "max_steps": 1}
    settings |= {"save_strategy": "steps", "save_steps": 1, "sft_batch_size": 1, "sft_epochs": 2}
    folder = run_here(monkeypatch, tmp_path, "chains_sft_grpo", **settings)
    stage = folder.path / "sft"
    weights, tries = (stage / "model" / "model.safetensors").read_bytes(), (stage / "trajectories.jsonl").read_bytes()
    last = max(stage.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    assert last.name == "checkpoint-2"
    for path in (last, stage / "model"):
        shutil.rmtree(path)
    (stage / "stage.json").unlink()
    run_here(monkeypatch, tmp_path, "chains_sft_grpo", **settings)
    assert (stage / "model" / "model.safetensors").read_bytes() == weights
    assert (stage / "trajectories.jsonl").read_bytes() == tries
    assert [line["update"] for line in RunFolder(stage).evaluations()] == [0, 2]


@pytest.mark.parametrize("recipe", ["chains_opd", "chains_opsd"])
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(tmp_path, monkeypatch, capsys, recipe):
    tiny = tmp_path / "teacher"
    teacher = bigram_model({-1: {token: 0.1 for token in P_DIGITS}})
    saved(teacher, tiny)
    settings = {"eval_problems": 0, "save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    settings |= {"teacher_model": tiny} if recipe == "chains_opd" else {}
    whole = run_here(monkeypatch, tmp_path, recipe, output_dir="whole", **settings | {"max_steps": 2})
    run_here(monkeypatch, tmp_path, recipe, output_dir="cut", **settings)
    going_on = settings | {"max_steps": 2, "resume_from_checkpoint": "last"}
    cut = run_here(monkeypatch, tmp_path, recipe, output_dir="cut", **going_on)
    assert (cut.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert [line["loss"] for line in cut.metrics() if "loss" in line] == [
        line["loss"] for line in whole.metrics() if "loss" in line
    ]
    with pytest.raises(CheckpointError, match=r"method\.divergence"):
        run_here(monkeypatch, tmp_path, recipe, output_dir="cut", **going_on | {"divergence": 0.25})


def test_what_a_method_cannot_follow_is_refused(tmp_path, monkeypatch):
    tiny_model().save_pretrained(tmp_path / "tiny")
    tiny_tokenizer().save_pretrained(tmp_path / "tiny")
    with pytest.raises(ConfigError, match="epsilon_high"):
        run_here(monkeypatch, tmp_path, "chains_opsd", epsilon_high=0.28)
    with pytest.raises(ConfigError, match="teacher_model"):
        run_here(monkeypatch, tmp_path, "chains_opd", teacher_model=tmp_path / "tiny")
    with pytest.raises(ConfigError, match=r"train_chains_teacher\.py"):
        run_here(monkeypatch, tmp_path, "chains_opd", teacher_model=tmp_path / "models" / "chains_teacher")
