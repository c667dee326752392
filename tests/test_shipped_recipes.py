"""The recipes that are shipped: known, parsed, and what their files promise."""

from pathlib import Path

import pytest

from mintrl_trl.recipe import parse_recipe, read_yaml

RECIPES = Path(__file__).parents[1] / "recipes"
QUICKSTART = RECIPES / "quickstart.yaml"

# Prompts x group of an update, and its rows per forward pass x passes, as their files promise.
SIZES = {
    "chains_grpo": (8, 16, 128, 1),
    "chains_mentor": (8, 16, 128, 1),
    "chains_opd": (8, 16, 128, 1),
    "chains_opsd": (8, 16, 128, 1),
    "chains_sft_grpo": (8, 16, 128, 1),
    "chains_hard_const": (8, 16, 128, 1),
    "chains_hard_proxy": (8, 16, 128, 1),
    "chains_teacher_judge": (8, 16, 128, 1),
    "chains_proxy": (8, 16, 128, 1),
    "chains_self_judge": (8, 16, 128, 1),
    "gsm8k_smollm2": (1, 4, 4, 1),
    "gsm8k_smollm2_server": (1, 4, 4, 1),
    "code_qwen3_1.7b": (32, 16, 1, 512),
    "code_qwen3_4b": (32, 16, 1, 512),
    "math_qwen3_1.7b": (32, 16, 1, 512),
    "math_qwen3_1.7b_deepseek": (32, 16, 1, 512),
    "math_qwen3_1.7b_grpo": (32, 16, 1, 512),
    "math_qwen3_1.7b_mentor": (32, 16, 1, 512),
    "math_qwen3_1.7b_opd": (32, 16, 1, 512),
    "math_qwen3_1.7b_sft_grpo": (32, 16, 1, 512),
    "math_qwen3_4b_opsd": (32, 16, 1, 512),
    "math_qwen3_1.7b_one_gpu": (8, 16, 1, 128),
    "math_qwen3_4b": (32, 16, 1, 512),
    "math_qwen3_4b_self_judge": (32, 16, 1, 512),
    "mbpp_smollm2": (1, 4, 4, 1),
    "quickstart": (8, 16, 128, 1),
}
FILES = sorted(RECIPES.glob("*.yaml"))


def test_every_recipe_is_known_here():
    assert {path.stem for path in FILES} == set(SIZES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_recipe_parses_with_the_batch_it_promises(path):
    config = parse_recipe(["--config", str(path)], default=QUICKSTART).config
    prompts, group, rows, passes = SIZES[path.stem]
    assert (config.prompts_per_update, config.num_generations) == (prompts, group)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == (rows, passes)
    assert prompts * group == rows * passes == config.generation_batch_size
    assert config.output_dir == f"runs/{path.stem}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_recipe_says_what_it_needs_and_shows(path):
    head = path.read_text().partition("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in head)
    assert head[0].endswith(".")
    for label in ("# Hardware: ", "# Command:  ", "# Expect:   "):
        assert any(line.startswith(label) and len(line) > len(label) for line in head), label
    assert path.stem == "quickstart" or any(f"--config recipes/{path.name}" in line for line in head)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_a_shipped_recipe_names_is_there(path):
    dataset = read_yaml(path).get("dataset")
    assert dataset is None or (RECIPES.parent / dataset).is_file() or not dataset.endswith(".jsonl")
