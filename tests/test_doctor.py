"""`mintrl doctor`: a set-up that is right, and set-ups broken on purpose, each with its cause named."""

import json
import re
import shutil
from collections import namedtuple

import pytest
import yaml

from mintrl_trl.cli import main
from mintrl_trl.data.chains import base_model_path
from mintrl_trl.doctor import Level, examine, servers
from mintrl_trl.generation.vllm_worker import EXTENSION

from .chat_endpoint import KEEP_TEXT
from .fake_vllm import FakeVLLM, Status
from .tiny_qwen import CHAT_TEMPLATE, qwen_model, qwen_tokenizer

TOKENIZER = qwen_tokenizer()
THINKING_ONLY = CHAT_TEMPLATE.rsplit("{% if enable_thinking", 1)[0] + "<think>\n{% endif %}"
ROW = {"problem": "What is 17 + 25?", "answer": "42", "solution": "17 + 25 = 42."}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a policy."""
    folder = tmp_path_factory.mktemp("model")
    qwen_model().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def tokenize(body: dict) -> list[int]:
    """What a vLLM server with the policy's tokenizer makes of a text or a chat."""
    text = body.get("prompt")
    if text is None:
        text = TOKENIZER.apply_chat_template(
            body["messages"],
            tokenize=False,
            add_generation_prompt=body["add_generation_prompt"],
            **body.get("chat_template_kwargs", {}),
        )
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def other_tokenizer(body: dict) -> list[int]:
    return [1 + token for token in tokenize(body)]


class SetUp:
    """A recipe with its servers, all as they should be; a test breaks one thing and looks at the findings."""

    def __init__(self, folder, model, policy: FakeVLLM, judge: FakeVLLM):
        self.folder, self.model, self.policy, self.judge = folder, model, policy, judge
        self.rows = [ROW] * 8
        self.flags: list[str] = []
        self.num_processes = 1
        self.settings = {
            "task": "math",
            "dataset": str(folder / "rows.jsonl"),
            "model_name_or_path": str(model),
            "output_dir": str(folder / "run"),
            "use_vllm": True,
            "vllm_server_base_url": policy.url,
            "judge": "llm",
            "judge_model": "judge",
            "judge_base_url": f"{judge.url}/v1",
            "prompts_per_update": 4,
            "num_control": 2,
            "num_intervened": 2,
            "max_steps": 6,
            "intervention_updates": 4,
            "save_steps": 2,
            "max_prompt_length": 512,
            "max_completion_length": 1024,
            "use_cpu": True,
            "dtype": "float32",
        }
        for server in (policy, judge):
            server.tokenize, server.chat = tokenize, lambda body: KEEP_TEXT
            server.complete = lambda body: tokenize({"prompt": " Wait"})
            server.max_model_len, server.chat_models = 8192, {server.model}
            server.dtype = "torch.float32"

    def alone_on_one_server(self) -> None:
        """An adapter, with its base model as judge beside it."""
        del self.settings["judge_model"], self.settings["judge_base_url"]
        self.settings |= {"judge": "self", "use_peft": True, "lora_r": 4}

    @property
    def recipe(self):
        path = self.folder / "recipe.yaml"
        path.write_text(yaml.safe_dump(self.settings))
        (self.folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in self.rows))
        return path

    def findings(self):
        return list(examine(self.recipe, self.flags, num_processes=self.num_processes))

    def problem(self) -> str:
        """The one thing that is wrong."""
        (found,) = [finding for finding in self.findings() if finding.level is Level.PROBLEM]
        return str(found)


@pytest.fixture
def setup(tmp_path, model):
    with FakeVLLM(str(model)) as policy, FakeVLLM("judge") as judge:
        yield SetUp(tmp_path, model, policy, judge)


def test_a_set_up_that_is_right(setup):
    found = setup.findings()
    assert [str(finding) for finding in found if finding.level is not Level.OK] == []
    text = "\n".join(map(str, found))
    assert "4 prompts x (2 control + 2 intervened) = 16 rollouts = 1 processes x 8 rows x 2 passes" in text
    assert "6 updates, interventions in the first 4, then GRPO" in text
    assert "What is 17 + 25?" in text and "| <think>" in text and "| </think>" in text
    assert "off, by the chat template's switch" in text
    assert "same tokenizer as the trainer's" in text
    assert "computes in float32, as the trainer does" in text
    assert "verdicts are held to a pattern" in text
    assert "corrections continue its very tokens" in text
    changing = {(seen.method, seen.path) for seen in (*setup.policy.seen, *setup.judge.seen) if seen.method != "GET"}
    assert changing <= {("POST", path) for path in ("/tokenize", "/v1/chat/completions", "/v1/completions")}


def test_an_adapter_and_its_judge_on_one_server_are_right(setup):
    setup.alone_on_one_server()
    found = setup.findings()
    assert [str(finding) for finding in found if finding.level is not Level.OK] == []
    assert any("as adapters, beside the base model" in finding.text for finding in found)
    assert setup.policy.adapters == {}


def from_gpu_to_gpu(setup, transfer):
    del setup.settings["use_cpu"]
    setup.settings["weight_sync"] = "nccl"
    setup.policy.transfer = transfer


def test_weights_from_gpu_to_gpu_are_right(setup):
    from_gpu_to_gpu(setup, {"backend": "nccl"})
    found = setup.findings()
    assert [str(finding) for finding in found if finding.level is Level.PROBLEM] == []
    assert any("new weights arrive from GPU to GPU" in finding.text for finding in found)


@pytest.mark.parametrize("transfer", [None, {"backend": "ipc"}], ids=["none", "another"])
def test_a_server_that_takes_no_weights_from_gpu_to_gpu(setup, transfer):
    from_gpu_to_gpu(setup, transfer)
    text = setup.problem()
    assert """it lacks --weight-transfer-config '{"backend": "nccl"}'""" in text
    assert "restart it: mintrl serve policy" in text


def test_an_adapter_does_not_go_from_gpu_to_gpu(setup):
    setup.alone_on_one_server()
    from_gpu_to_gpu(setup, {"backend": "nccl"})
    setup.settings["judge_base_url"] = f"{setup.judge.url}/v1"
    setup.judge.model = str(setup.model)
    found = [str(finding) for finding in setup.findings() if "weight_sync" in finding.text]
    assert any("lora or auto for a model that trains an adapter" in finding for finding in found)


def test_without_vllm_beside_the_trainer_nothing_goes_from_gpu_to_gpu(setup, monkeypatch):
    from_gpu_to_gpu(setup, {"backend": "nccl"})
    monkeypatch.setattr(servers, "trains_here", lambda args: True)
    assert "vLLM is not installed in the trainer's environment" in setup.problem()


def broken_key(setup):
    setup.settings["chunk_tokns"] = 512


def broken_batch(setup):
    setup.num_processes = 3


def broken_dataset(setup):
    setup.settings["dataset"] = str(setup.folder / "gone.jsonl")


def broken_lengths(setup):
    setup.settings |= {"max_prompt_length": 5}


def broken_positions(setup):
    setup.settings["max_completion_length"] = 40_960
    setup.policy.max_model_len = 50_000


def broken_policy_down(setup):
    setup.settings["vllm_server_base_url"] = "http://127.0.0.1:9"


def broken_policy_no_vllm(setup):
    setup.policy.faults["/health"].append(Status(404))


def broken_policy_model(setup):
    setup.policy.model = "Qwen/Qwen3-4B"


def broken_policy_tokenizer(setup):
    setup.policy.tokenize = other_tokenizer


def broken_policy_room(setup):
    setup.policy.max_model_len = 1024


def broken_dev_mode(setup):
    setup.policy.dev_mode = False


def broken_cpu_server(setup):
    setup.policy.device = "cpu"


def broken_lora(setup):
    setup.alone_on_one_server()
    setup.policy.lora = False


def broken_base_weights(setup):
    setup.alone_on_one_server()
    setup.policy.weight_version = "weights-abc-v-update-3"


def broken_judge_down(setup):
    setup.settings["judge_base_url"] = "http://127.0.0.1:9/v1"


def broken_judge_address(setup):
    setup.settings["judge_base_url"] = setup.judge.url


def broken_judge_model(setup):
    setup.settings["judge_model"] = "Qwen/Qwen3-4B-Instruct-2507"


def broken_judge_room(setup):
    setup.judge.max_model_len = 2048


def broken_judge_thinks(setup):
    setup.judge.chat = lambda body: ""


def broken_judge_anchor(setup):
    setup.settings["anchor"] = "judge"
    setup.judge.tokenize = other_tokenizer


def broken_judge_key(setup):
    setup.settings["judge_api_key_env"] = "NO_SUCH_KEY_HERE"


def broken_judge_on_policy(setup):
    setup.settings |= {"judge_base_url": f"{setup.policy.url}/v1", "judge_model": str(setup.model)}


def broken_self_judge(setup):
    setup.alone_on_one_server()
    del setup.settings["use_peft"], setup.settings["lora_r"]


def broken_rows_for_self_judge(setup):
    setup.alone_on_one_server()
    setup.rows = [{name: value for name, value in ROW.items() if name != "solution"}] * 8


BROKEN = [
    (broken_key, r"`chunk_tokns`.*did you mean `?chunk_tokens"),
    (broken_batch, r"3 processes.*change: set prompts_per_update=3"),
    (broken_dataset, r"gone\.jsonl"),
    (broken_lengths, r"all above max_prompt_length=5.*change: set `max_prompt_length: \d+`"),
    (broken_positions, r"41472 tokens, the model 40960 positions.*`max_completion_length: 40448`"),
    (broken_policy_down, r"nobody serves at http://127\.0\.0\.1:9 .*change: start it: mintrl serve policy --config"),
    (broken_policy_no_vllm, r"answers, but is no vLLM server"),
    (broken_policy_model, r"serves 'Qwen/Qwen3-4B', and not the policy"),
    (broken_policy_tokenizer, r"another model under the name.*writes other ids"),
    (broken_policy_room, r"room for 1024 tokens, and prompt and response may have 1536.*--max-model-len 1536"),
    (broken_dev_mode, r"no weights can be brought to it: it lacks VLLM_SERVER_DEV_MODE=1"),
    (broken_cpu_server, rf"old output layer.*{EXTENSION}"),
    (broken_lora, r"no adapter can be loaded: it lacks --enable-lora"),
    (broken_base_weights, r"no longer those it started with.*restart"),
    (broken_judge_down, r"judge +nobody serves at http://127\.0\.0\.1:9 .*mintrl serve judge --config"),
    (broken_judge_address, r"end the address with /v1"),
    (broken_judge_model, r"`Qwen/Qwen3-4B-Instruct-2507` does not exist.*serves 'judge'"),
    (broken_judge_room, r"judge +the judge 'judge' at http\S+ has a context of 2048 tokens.*change: .*--max-model-len"),
    (broken_judge_thinks, r"gave no verdict.*change: .*judge_extra_body"),
    (broken_judge_anchor, r"anchor='judge' needs the judge's log-probabilities"),
    (broken_judge_key, r"`judge_api_key_env`.*change: export NO_SUCH_KEY_HERE"),
    (broken_judge_on_policy, r"the policy's server, whose weights every sync replaces"),
    (broken_self_judge, r"a second server with the initial model.*change: start one"),
    (broken_rows_for_self_judge, r"no privileged context: it would know no more.*change: give the rows `solution`"),
]


@pytest.mark.parametrize(("break_it", "cause"), BROKEN, ids=[broken.__name__[7:] for broken, _ in BROKEN])
def test_the_cause_is_named(setup, break_it, cause):
    break_it(setup)
    found = setup.problem()
    assert re.search(cause, found, re.DOTALL), found


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        (THINKING_ONLY, "thinking       the chat template opens a thinking block although thinking is off"),
        (None, "has no chat template, and the prompts are messages"),
    ],
    ids=["thinking_only", "no_template"],
)
def test_a_tokenizer_that_does_not_do(setup, tmp_path, template, cause):
    folder = tmp_path / "other"
    shutil.copytree(setup.model, folder)
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    if template is None:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
    setup.settings["model_name_or_path"] = setup.policy.model = str(folder)
    assert cause in setup.problem()


def test_a_judge_on_the_policys_server_is_not_asked_while_that_is_down(setup):
    setup.alone_on_one_server()
    broken_policy_down(setup)
    assert "nobody serves" in setup.problem()
    assert "not asked until that is up" in setup.findings()[-1].text


def test_no_more_room_is_advised_than_the_model_has_positions(setup):
    setup.alone_on_one_server()  # a review by the same server takes more than a rollout
    setup.policy.max_model_len = 1024
    setup.settings["judge_max_tokens"] = 60_000
    fixes = [finding.fix for finding in setup.findings() if finding.level is Level.PROBLEM]
    assert "restart it with --max-model-len 40960" in fixes


def test_mistakes_that_do_not_depend_on_each_other_are_found_at_once(setup):
    setup.settings |= {"chunk_tokns": 3, "max_reviews": "four"}
    setup.flags = ["--seeed", "1"]
    found = [str(finding) for finding in setup.findings()]
    assert all(name in "".join(found) for name in ("`chunk_tokns`", "`max_reviews`", "`seeed`"))
    assert len(found) == 3
    del setup.settings["chunk_tokns"], setup.settings["max_reviews"]
    setup.flags = []
    setup.settings |= {"model_name_or_path": "models/no-such-model", "dataset": str(setup.folder / "gone.jsonl")}
    found = [finding for finding in setup.findings() if finding.level is Level.PROBLEM]
    assert [finding.topic for finding in found[:2]] == ["tokenizer", "data set"]


def test_a_full_disk(setup, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
    assert "checkpoints and weights on their way, 0.0 GiB free" in setup.problem()


def test_a_folder_of_another_run(setup):
    (setup.folder / "run").mkdir()
    (setup.folder / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    assert "`output_dir`" in setup.problem()


def test_what_is_only_worth_knowing(setup):
    setup.judge.tokenize = other_tokenizer
    setup.policy.dtype = "torch.bfloat16"
    setup.policy.weight_version = "weights-abc-v-update-3"
    setup.settings["max_steps"] = 4
    notes = [finding.text for finding in setup.findings() if finding.level is not Level.OK]
    assert len(notes) == 4
    assert "interventions in all of 4 updates" in notes[0]
    assert "which the first sync replaces" in notes[1]
    assert "computes in bfloat16, the trainer here in float32" in notes[2]
    assert "another vocabulary" in notes[3]


def test_a_machine_that_is_not_the_trainers_cannot_tell_its_numbers(setup, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    setup.settings |= {"use_cpu": False}
    setup.policy.dtype = "torch.bfloat16"
    notes = [finding for finding in setup.findings() if finding.level is not Level.OK]
    assert [finding.topic for finding in notes] == ["device", "policy server"]
    assert "computes in bfloat16; whether the trainer does" in notes[1].text


def test_the_command_line(setup, capsys):
    assert main(["doctor", "--config", str(setup.recipe), "--num-processes", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("ok      recipe")
    assert out.endswith("Nothing to change.\n")
    assert err == ""
    setup.policy.lora = False
    assert main(["doctor", "--config", str(setup.recipe), "--chunk_tokens", "0"]) == 1
    out, _ = capsys.readouterr()
    assert out.startswith("PROBLEM recipe")
    assert out.endswith("1 to change.\n")
    assert main(["doctor", "--config", str(setup.recipe), "--num-processes", "0"]) == 2
    assert "`--num-processes` is 0" in capsys.readouterr().err


def test_the_small_world_needs_nothing(tmp_path, capsys):
    flags = ["--output_dir", str(tmp_path / "run")]
    assert main(["doctor", "--config", "recipes/quickstart.yaml", *flags]) == 0
    assert "a program, in process" in capsys.readouterr().out
    flags += ["--judge_model", str(base_model_path())]
    assert main(["doctor", "--config", "recipes/chains_teacher_judge.yaml", *flags]) == 0
    assert f"the model in {base_model_path()}, in process" in capsys.readouterr().out.replace("\n", "")


def test_the_command_to_start_a_server_has_the_flags_of_the_examination(setup):
    setup.folder = setup.folder / "my recipes"
    setup.folder.mkdir()
    setup.settings["dataset"] = str(setup.folder / "rows.jsonl")
    setup.flags = ["--vllm_server_base_url", "http://127.0.0.1:9"]
    flags = f"--config '{setup.folder}/recipe.yaml' --vllm_server_base_url http://127.0.0.1:9"
    assert f"start it: mintrl serve policy {flags}" in setup.problem()
