"""Trimmed, dealt and cut rows give the loss and the gradients of TRL's own layout, in float64 to 1e-9."""

import pytest
import torch
import trl.trainer.grpo_trainer
from transformers import AutoModelForCausalLM, TrainerCallback

from mintrl_trl import MInTRLTrainer, trl_seams
from mintrl_trl.lean_updates import trimmed_forward
from mintrl_trl.objective.layout import split_updates
from mintrl_trl.rollouts.schedule import request_seed
from tests.tiny import double_precision, tiny_model
from tests.trainers import HashGenerator, RejectLastStep, make_trainer, parity_reward

# Prompts of unlike lengths, so that dropping columns moves rows to other absolute positions.
ROWS = [{"prompt": "1+" * (i % 3) + f"{i}=", "answer": str(i)} for i in range(8)]


class LongTailed(HashGenerator):
    """Lengths from 1 to the limit."""

    def __init__(self):
        super().__init__(end_every=14)


def some_groups_dead(prompts, completions, completion_ids, **kwargs):
    """1 for all responses to half of the prompts; parity, or no reward for the longest, for the others."""
    return [
        1.0 if int(prompt[-2]) % 2 else None if len(ids) == 16 else float(len(ids) % 2 == 0)
        for prompt, ids in zip(prompts, completion_ids, strict=True)
    ]


class Gradients(TrainerCallback):
    """Keeps the gradients of every update."""

    def __init__(self):
        self.kept = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.kept.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})


@pytest.fixture(autouse=True)
def exact():
    with double_precision():
        yield


def train(folder, *, lean, judge=None, reward=some_groups_dead, model_change=None, **overrides):
    gradients = Gradients()
    settings = {
        "max_steps": 2,
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "learning_rate": 0.05,
        "beta2": 0.3,
        "unscored_limit": 1.0,
    }
    model = tiny_model(tied=model_change is None)
    if model_change is not None:
        with torch.no_grad():
            model_change(model)
    model.save_pretrained(folder / "model")
    trainer = make_trainer(
        folder / "run",
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float64),
        rows=ROWS,
        reward=reward,
        judge=judge or RejectLastStep(),
        generator=LongTailed(),
        lean_updates=lean,
        trainer_kwargs={"callbacks": [gradients]},
        **(settings | overrides),
    )
    trainer.train()
    trainer.close()
    return gradients.kept, trainer


def assert_same(left, right):
    assert len(left) == len(right)
    largest = max(gradient.abs().max().item() for step in right for gradient in step.values())
    assert largest > 1e-3
    for ours, theirs in zip(left, right, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-9 * largest)


def plain_split(monkeypatch, trainer_seed=42):
    """Let TRL shuffle rows into updates as lean updates do: by the seed and the update."""

    def shuffle(batch):
        rows = len(batch["advantages"])
        order = split_updates(rows, 2, request_seed(trainer_seed, shuffle.update, 0, 0, "layout")).flatten()
        shuffle.update += shuffle.step
        return {key: value if value.ndim == 0 else value[order] for key, value in batch.items()}

    shuffle.update = 0
    monkeypatch.setattr(trl.trainer.grpo_trainer, "shuffle_sequence_dict", shuffle)
    return shuffle


def slowly(*cases):
    """Cases of the slow suite."""
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


PHASES = {
    "const": {"intervention_updates": 2},
    "proxy": {"intervention_updates": 2, "anchor": "proxy"},
    "judge": {"intervention_updates": 2, "anchor": "judge"},
    "grpo": {"intervention_updates": 0},
    "dr_grpo": {"intervention_updates": 0, "loss_type": "dr_grpo"},
    "dapo": {"intervention_updates": 0, "loss_type": "dapo"},
    "cispo": {"intervention_updates": 0, "loss_type": "cispo", "epsilon_high": 5.0},
    "kl": {"intervention_updates": 0, "beta": 0.1},
    "both": {"intervention_updates": 1},
}


@pytest.mark.parametrize(
    ("phase", "size"),
    [("both", 2), *slowly(*((phase, 2) for phase in PHASES if phase != "both"), ("both", 8), ("both", 1))],
)
def test_gradients_are_those_of_the_plain_update(tmp_path, phase, size):
    judge = RejectLastStep(logps=(-0.5, -0.25)) if phase == "judge" else None
    settings = PHASES[phase] | {"per_device_train_batch_size": size}
    lean, ours = train(tmp_path / "lean", lean=True, judge=judge, **settings)
    plain, theirs = train(tmp_path / "plain", lean=False, judge=judge, **settings)
    assert_same(lean, plain)
    for left, right in zip(ours.state.log_history[:-1], theirs.state.log_history[:-1], strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-6)
        assert left["entropy/sample"] == pytest.approx(right["entropy/sample"], rel=1e-6)


@pytest.mark.parametrize(
    ("phase", "passes"),
    [("const", 1), *slowly(("proxy", 1), ("grpo", 1), ("dapo", 1), ("kl", 1), ("const", 2), ("grpo", 2))],
)
def test_several_updates_of_one_generated_batch(tmp_path, monkeypatch, phase, passes):
    first = PHASES[phase]["intervention_updates"]
    settings = PHASES[phase] | {
        "per_device_train_batch_size": 2,
        "updates_per_generation": 2,
        "num_iterations": passes,
        "max_steps": 4 * passes,
        "intervention_updates": 4 * passes if first else 0,
    }
    lean, _ = train(tmp_path / "lean", lean=True, **settings)
    plain_split(monkeypatch).step = 2 * passes
    plain, _ = train(tmp_path / "plain", lean=False, **settings)
    assert_same(lean, plain)


@pytest.mark.parametrize("phase", ["const", "grpo"])
def test_several_passes_over_one_generated_batch(tmp_path, phase):
    settings = PHASES[phase] | {"per_device_train_batch_size": 2, "num_iterations": 2}
    lean, _ = train(tmp_path / "lean", lean=True, **settings)
    plain, _ = train(tmp_path / "plain", lean=False, **settings)
    assert_same(lean, plain)


@pytest.mark.parametrize(
    "setting",
    [
        {"loss_type": "bnpo"},
        {"entropy_coef": 0.01},
        {"top_entropy_quantile": 0.5},
        {"mask_truncated_completions": True},
        {"pad_to_multiple_of": 8},
    ],
    ids=str,
)
def test_settings_that_look_at_several_rows_keep_their_meaning(tmp_path, setting):
    """TRL shuffles by torch's global generator, which both runs enter in the same state."""
    settings = {"intervention_updates": 1, "per_device_train_batch_size": 2} | setting
    torch.manual_seed(0)
    lean, _ = train(tmp_path / "lean", lean=True, **settings)
    torch.manual_seed(0)
    plain, _ = train(tmp_path / "plain", lean=False, **settings)
    assert_same(lean, plain)


def test_fewer_tokens_are_forwarded_and_dead_rows_cost_two(tmp_path):
    counts = {}
    for lean in (True, False):
        _, trainer = train(
            tmp_path / str(lean),
            lean=lean,
            intervention_updates=0,
            max_steps=1,
            per_device_train_batch_size=1,
            entropy_sample=0,
        )
        log = trainer.state.log_history[0]
        counts[lean] = {name: log.get(f"tokens/{name}") for name in ("live", "forwarded", "without_gradient")}
    assert counts[False]["without_gradient"] is None
    dead = counts[True]["without_gradient"]
    assert dead > 0 and counts[True]["live"] == counts[True]["forwarded"]  # a row alone has no padding
    rows = counts[True]["live"] - (counts[False]["live"] - dead)
    assert rows > 0 and rows % 2 == 0 and rows <= 16
    assert counts[False]["forwarded"] > counts[False]["live"]


def test_rows_of_the_entropy_sample_are_forwarded_whole(tmp_path):
    """With a sample as large as all controls, no control is cut; the entropy is of these."""

    def nothing(completions, **kwargs):
        return [0.0] * len(completions)

    seen = []
    _, trainer = train(tmp_path, lean=True, reward=nothing, intervention_updates=0, entropy_sample=2, max_steps=1,
                       trainer_class=recording(seen))  # fmt: skip
    batch = seen[0]
    assert batch[trl_seams.LIVE].sum() == 2 and torch.equal(batch[trl_seams.LIVE], batch[trl_seams.ENTROPY_SAMPLE])
    assert sorted(batch[trl_seams.ROW][batch[trl_seams.LIVE]].tolist()) == [0, 4]  # the first control of each group
    log = trainer.state.log_history[0]
    assert log["entropy/live"] == pytest.approx(log["entropy/sample"])
    assert "entropy" not in log  # TRL's is over rows that were cut, too
    assert log["grad_norm"] == 0


def recording(seen):
    class Recording(MInTRLTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            seen.append(inputs)
            return super().compute_loss(model, inputs, *args, **kwargs)

    return Recording


@pytest.mark.parametrize("phase_1", [1, 0], ids=["phase 1", "phase 2"])
def test_what_is_kept_of_a_forward_keeps_no_graph_alive(tmp_path, phase_1):
    """Else the activations of one micro-batch would stay through the forward of the next."""
    trainer = make_trainer(tmp_path, max_steps=1, intervention_updates=phase_1)
    trainer.train()
    assert not trainer.lean.entropies.requires_grad


def test_long_rows_come_first_and_share_a_micro_batch(tmp_path):
    seen = []
    train(tmp_path, lean=True, max_steps=1, per_device_train_batch_size=2, trainer_class=recording(seen),
          reward=parity_reward)  # fmt: skip
    lengths = torch.cat([batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1) for batch in seen])
    assert (lengths.diff() <= 0).all()
    assert sorted(torch.cat([batch[trl_seams.ROW] for batch in seen]).tolist()) == list(range(8))


def test_chunks_of_the_forward_without_gradient_come_back_in_place():
    """Three rows in chunks of two: the longest two first, each chunk without its padding."""
    shapes = []

    def forward(model, ids, mask, width, batch_size, *, compute_entropy=False):
        shapes.append((tuple(ids.shape), width))
        logps = -ids[:, -width:].double()
        return logps, (logps - 1 if compute_entropy else None), None

    ids = torch.tensor([[0, 7, 11, 12, 13, 14], [7, 8, 21, 22, 0, 0], [0, 9, 31, 0, 0, 0]])
    mask = (ids > 0).long()
    logps, entropies, aux = trimmed_forward(forward, None, ids, mask, 4, 2, compute_entropy=True)
    assert shapes == [((2, 6), 4), ((1, 2), 1)]
    assert logps.tolist() == [[-11, -12, -13, -14], [-21, -22, 0, 0], [-31, 0, 0, 0]]
    assert entropies.tolist()[2] == [-32, 0, 0, 0] and aux is None


def test_padding_that_a_sure_model_finds_impossible_leaves_the_loss_finite(tmp_path):
    """Ratios at positions that one forward drops and the other does not; exp(100) in place of 1 there makes NaN."""
    settings = {
        "intervention_updates": 0,
        "per_device_train_batch_size": 2,
        "num_iterations": 2,
        "max_steps": 4,
        "delta": None,
        "learning_rate": 1e-12,
        "model_change": lambda model: model.lm_head.weight.mul_(1500.0),
    }
    lean, _ = train(tmp_path / "lean", lean=True, **settings)
    plain, _ = train(tmp_path / "plain", lean=False, **settings)
    assert_same(lean, plain)


def test_padding_has_log_probability_0_whether_its_column_is_dropped_or_not():
    def forward(model, ids, mask, width, batch_size):
        return torch.full((len(ids), width), -100.0), None, None

    ids = torch.tensor([[1, 2, 3, 4, 0], [1, 2, 3, 0, 0]])
    logps, _, _ = trimmed_forward(forward, None, ids, (ids > 0).long(), 3)
    assert logps.tolist() == [[-100, -100, 0], [-100, 0, 0]]
