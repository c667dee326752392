"""The launch files: accelerate's own loader and launcher read them, and mean by them what their headings say."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from datasets import Dataset
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from mintrl_trl import ConfigError, MInTRLConfig, MInTRLTrainer
from mintrl_trl.config_combinations import check_launch
from mintrl_trl.recipe import parse_recipe

from .trainers import ROWS, RejectLastStep, parity_reward, settings

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "recipes" / "accelerate"
TYPES = {"ddp": DistributedType.MULTI_GPU, "fsdp2": DistributedType.FSDP, "zero3": DistributedType.DEEPSPEED}


def launcher(name: str):
    """What `accelerate launch --config_file` makes of a file, before it starts anything."""
    words = ["--config_file", str(FOLDER / f"{name}.yaml"), "--main_process_port", "0", "train.py"]
    return _validate_launch_command(launch_command_parser().parse_args(words))[0]


def test_each_file_is_tested():
    assert {path.stem for path in FOLDER.iterdir()} == {*TYPES, "one_process"}


@pytest.mark.parametrize("name", TYPES)
def test_accelerate_knows_every_key(name):
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert config.distributed_type is TYPES[name]
    assert (config.num_processes, config.num_machines, config.mixed_precision) == (8, 1, "bf16")
    options = vars(launch_command_parser().parse_args(["train.py"]))
    for part in ("fsdp_config", "deepspeed_config"):  # keys in these are not checked by the loader
        assert set(getattr(config, part)) <= set(options), part
    repeated = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    assert set(repeated) <= set(vars(config))


@pytest.mark.parametrize("name", [*TYPES, "one_process"])
def test_the_command_in_the_heading_names_files_that_are_there(name):
    heading = (FOLDER / f"{name}.yaml").read_text().split("\n\n")[0]
    files = re.findall(r"recipes/[\w/.]+\.(?:yaml|py)", heading)
    assert files[0] == f"recipes/accelerate/{name}.yaml"
    assert len(files) == 3 and all((ROOT / file).is_file() for file in files)


def test_one_process_leaves_the_launcher_nothing_to_remark(caplog):
    args = launcher("one_process")
    assert (args.num_processes, args.num_machines, args.mixed_precision, args.dynamo_backend) == (1, 1, "no", "no")
    assert not (args.multi_gpu or args.use_fsdp or args.use_deepspeed or args.use_cpu)
    assert caplog.messages == []
    known = load_config_from_file(str(FOLDER / "one_process.yaml"))
    assert set(yaml.safe_load((FOLDER / "one_process.yaml").read_text())) <= set(vars(known))


def test_ddp_starts_plain_processes():
    args = launcher("ddp")
    assert args.multi_gpu and not args.use_fsdp and not args.use_deepspeed
    environment = prepare_multi_gpu_env(args)
    assert environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert "ACCELERATE_USE_FSDP" not in environment


def test_fsdp2_shards_each_decoder_layer(monkeypatch):
    args = launcher("fsdp2")
    assert args.use_fsdp and not args.multi_gpu
    environment = prepare_multi_gpu_env(args)
    assert environment["ACCELERATE_USE_FSDP"] == "true"
    for name, value in environment.items():
        if name.startswith("FSDP_"):
            monkeypatch.setenv(name, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.auto_wrap_policy is transformer_auto_wrap_policy
    assert plugin.state_dict_type is StateDictType.SHARDED_STATE_DICT
    assert not plugin.cpu_ram_efficient_loading and not plugin.activation_checkpointing


def test_zero3_asks_for_stage_three():
    args = launcher("zero3")
    assert args.use_deepspeed
    args.deepspeed_fields_from_accelerate_config = ""  # set where the launcher starts the processes
    _, environment = prepare_deepspeed_cmd_env(args)
    assert environment["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert environment["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert environment["ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"] == "true"


def without_whole_model(monkeypatch, kind: str) -> str:
    """Variables as a launcher of sharded processes sets them; gives what a message calls it."""
    if kind == "fsdp2":
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        return "FSDP"
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    return "DeepSpeed ZeRO-3"


@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_local_generation_is_refused_before_a_model_loads(monkeypatch, tmp_path, kind):
    # Made first: with DeepSpeed's variables a config looks for DeepSpeed.
    args = MInTRLConfig(str(tmp_path), **settings())
    served = MInTRLConfig(str(tmp_path), **settings(), use_vllm=True, vllm_server_base_url="http://localhost:8000")
    allowed = (
        f"Allowed: 'vllm' under {without_whole_model(monkeypatch, kind)}, because no process holds the whole model"
    )
    rows = Dataset.from_list(ROWS)
    with pytest.raises(ConfigError, match=f"`generation` is 'local'. {allowed}"):
        MInTRLTrainer("no/such-model", parity_reward, args, rows, judge=RejectLastStep())
    check_launch(args, has_generator=True)
    check_launch(served)


def test_a_recipe_that_samples_in_process_is_refused_where_it_is_read(monkeypatch):
    recipe = ROOT / "recipes" / "quickstart.yaml"
    assert parse_recipe([], default=recipe).config.generation == "local"
    without_whole_model(monkeypatch, "fsdp2")
    with pytest.raises(ConfigError, match=r"launch with recipes/accelerate/ddp\.yaml"):
        parse_recipe([], default=recipe)


@pytest.mark.parametrize("name", ["reset_optimizer_at_switch", "dry_run_worst_case"])
def test_what_needs_the_optimizer_does_not_go_with_deepspeed(monkeypatch, tmp_path, name):
    args = MInTRLConfig(str(tmp_path), **settings(), **{name: True})
    check_launch(args)
    kept = dataclasses.replace(args, **{name: False})
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(ConfigError, match=rf"`{name}` is True\. Allowed: false under DeepSpeed"):
        check_launch(args)
    check_launch(kept)
