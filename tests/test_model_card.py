"""The model card: what it says of a run, by hand-written numbers, and that hostile text stays text."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from mintrl_trl.reporting.records import RecordedReview
from mintrl_trl.reporting.run_folder import RunFolder
from mintrl_trl.rollouts.rollout import Author, Role
from mintrl_trl.sharing.card import ModelFacts, code, judge_in_words, model_card
from mintrl_trl.sharing.examples import Example, example_markdown, find_examples
from mintrl_trl.sharing.hub_names import is_hub_id, started_in

from .analyzed_runs import GRPO_SETTINGS, SETTINGS, write_run
from .fake_hub import card_errors
from .samples import corrected_record

JUDGED = SETTINGS | {
    "judge": "llm",
    "judge_model": "org/judge",
    "kappa": -0.25,
    "chunk_tokens": 512,
    "num_control": 8,
    "prompts_per_update": 32,
}
LINES = {
    1: {
        "reward": 0.2,
        "rewards/intervened": 0.6,
        "off_policy_share": 0.04,
        "tokens/intervention": 30,
        "tokens/policy": 970,
    },
    2: {
        "reward": 0.3,
        "rewards/intervened": 0.6,
        "off_policy_share": 0.02,
        "tokens/intervention": 10,
        "tokens/policy": 990,
    },
    3: {"reward": 0.4, "judge/revise_rate": 0.25, "judge/cost": 1.5},
    4: {"reward": 0.6, "judge/cost": 0.75, "train_runtime": 7200.0},
}
RECIPE = {
    "dataset": "nvidia/AceReason-Math",
    "dataset_split": "train",
    "dataset_limit": 100,
    "use_peft": True,
    "lora_r": 32,
    "lora_alpha": 64,
}


FACTS = ModelFacts("me/mine", base_model="org/base", license="mit", judge_license="gpl-3.0")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(tmp_path, facts=None, **changes) -> str:
    changes = {"settings": JUDGED, "lines": LINES, "solved": {0: (1, 0), 4: (4, 2)}, "recipe": RECIPE} | changes
    folder = write_run(tmp_path / "run", **changes)
    text = model_card(
        folder, facts or ModelFacts("me/mine", base_model="org/base", license="mit", judge_license="gpl-3.0")
    )
    assert card_errors(text) == []
    return text


def test_the_card_says_what_the_run_folder_says(tmp_path):
    text = written(tmp_path)
    for said in (
        "trained with **MInTRL-Const**",
        "[org/base](https://huggingface.co/org/base)",
        "| Updates | <code>4, of which 2 with interventions, then GRPO</code> |",
        "| Anchor | <code>const, kappa = -0.25 nats per token</code> |",
        "| Adapter | <code>LoRA, rank 32, alpha 64</code> |",
        "| Time | <code>2.0 hours</code> |",
        "| Judge | <code>org/judge</code>, behind an endpoint |",
        "| Its licence | <code>gpl-3.0</code> |",
        "| Share of its tokens | 3.00% of rollouts with interventions (4.00% in the first update, 2.00% in the last",
        "2.00% of all rollouts' tokens (40 tokens)",
        "| Chunks it rejected | 25.0% |",
        "| Its cost | 2.25, at the prices",
        "[nvidia/AceReason-Math](https://huggingface.co/datasets/nvidia/AceReason-Math)",
        "the first 100 rows",
        "| pass@1, <code>easy</code> | 25.0% | 100.0% (",
        "| pass@1, <code>all</code> | 12.5% | 75.0% (",
        "on the 2 fixed problems of the evaluation, 4 samples each, after 0 and 4 updates",
        "Reward of control rollouts in training: 0.2 to 0.6, as a trailing mean",
        "hf download me/mine --local-dir mine",
        "mintrl analyze mine --figures 3 4a",
        "mintrl report mine",
        "mintrl eval mine --benchmarks math --data data/eval",
        "@article{mintrl,",
    ):
        assert said in text, said
    data = ModelCard(text).data
    assert (data.license, data.datasets, data.base_model) == ("mit", ["nvidia/AceReason-Math"], "org/base")
    scores = {(result.dataset_name, result.metric_type): result.metric_value for result in data.eval_results}
    assert scores["math, all problems", "pass@1"] == 0.75
    assert scores["math, hard problems", "pass@4"] == 1.0


def test_a_checkpoint_has_no_word_of_what_came_after_it(tmp_path):
    solved = {0: (1, 0), 2: (2, 1), 4: (4, 2)}
    text = written(tmp_path, replace(FACTS, update=2), solved=solved)
    for said in (
        "| Updates | <code>2 of the 4 of the run</code> |",
        "| pass@1, <code>easy</code> | 25.0% | 50.0% (",
        "after 0 and 2 updates",
        "Reward of control rollouts in training: 0.2 to 0.3, as a trailing mean",
    ):
        assert said in text, said
    assert "cost" not in text


def test_a_run_without_judge_has_no_word_of_one(tmp_path):
    text = written(tmp_path, settings=GRPO_SETTINGS, lines={1: {"reward": 0.5}}, solved={})
    assert "trained with **GRPO**" in text
    assert "judge" not in text.replace("settings.json", "").lower()
    assert ModelCard(text).data.eval_results is None


def test_scores_that_are_all_alike_have_an_interval_too(tmp_path):
    text = written(tmp_path, solved={0: (4, 4), 4: (4, 4)})
    assert "| pass@1, <code>all</code> | 100.0% | 100.0% (15.8 to 100.0%) |" in text


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"model_name_or_path": "/home/me/bases/tiny_v2"}, "the local model <code>tiny_v2</code>"),
        ({"task": "chains"}, "the base model of the small world `chains`"),
        ({}, "a local model"),
    ],
)
def test_a_base_model_that_is_not_on_the_hub_is_named_without_its_place(tmp_path, recipe, words):
    text = written(tmp_path, ModelFacts("mine"), recipe=recipe, settings=JUDGED | {"correction_tokens": 1})
    assert f"A version of {words}, trained" in text
    assert "/home/me" not in text
    assert "corrections of at most 1 token<" in text
    assert "hf download OWNER/mine --local-dir mine" in text


def test_what_is_not_known_is_said_or_left_out(tmp_path):
    text = written(tmp_path, ModelFacts("mine", adapter=True), recipe={"dataset": "/home/me/private/rows.jsonl"})
    assert "An adapter for a local model" in text
    assert "PATH_OF_THE_BASE_MODEL" in text
    assert "not known here; see the page of the model" in text
    assert "/home/me" not in text
    assert "<code>rows.jsonl</code>" in text
    data = ModelCard(text).data
    assert (data.base_model, data.license, data.datasets, data.library_name) == (None, None, None, "peft")


@pytest.mark.parametrize("teacher", ["org/teacher", "/home/me/teacher"])
def test_a_teacher_is_named_and_not_where_it_lies(tmp_path, teacher):
    text = written(tmp_path, settings=GRPO_SETTINGS, recipe={"method": "opd", "teacher_model": teacher})
    assert "trained with **OPD**" in text
    assert f"| Teacher | <code>{teacher if teacher[0] == 'o' else 'teacher'}; its licence" in text
    assert "/home/me" not in text


def test_a_folder_without_a_run_has_a_card(tmp_path):
    text = model_card(tmp_path, ModelFacts("me/mine"))
    assert card_errors(text) == []
    assert "## Training" not in text


@pytest.mark.parametrize(
    ("settings", "base", "words"),
    [
        ({"judge": "exact"}, "org/base", "a program that checks steps exactly"),
        ({"judge": "self"}, "org/base", "<code>org/base</code>, the initial policy, shown privileged context"),
        ({"judge": "self"}, None, "the initial policy itself, shown privileged context"),
        ({"judge": "llm"}, "org/base", "a model behind an endpoint that does not name it"),
        ({"judge": "local", "judge_model": "m"}, None, "<code>m</code>, in the training process"),
        ({"judge": None}, None, "an object of the training program"),
        ({"judge": "exact", "judge_variant": "placebo"}, None, "a program that checks steps exactly; varied: placebo"),
    ],
)
def test_who_judged(settings, base, words):
    assert judge_in_words(settings, base) == words


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("org/name", True),
        ("gpt2", True),
        ("rows.jsonl", False),
        ("/a/b", False),
        ("a/b/c", False),
        ("a](x)/b", False),
        ("../base", False),
        ("data/rows.csv", False),
        ("data/rows.parquet", False),
    ],
)
def test_hub_ids(name, answer):
    assert is_hub_id(name) is answer


@pytest.mark.parametrize(
    ("output_dir", "place"),
    [
        *(
            ("runs/a", "start"),
            ("./runs/a/", "start"),
            ("a", "start/runs"),
            (Path("start/runs/a"), None),
            ("runs/b", None),
        ),
        *((None, None), ("", None), (".", None), ("../a", None)),
    ],
)
def test_where_a_run_was_started(tmp_path, output_dir, place):
    output_dir = (
        str(tmp_path / output_dir) if isinstance(output_dir, Path) else output_dir
    )  # an absolute one says nothing
    found = started_in(tmp_path / "start" / "runs" / "a", {"output_dir": output_dir})
    assert found == (Path() if place is None else tmp_path / place)


HOSTILE = "</pre></details>\n\n# Owned\n<script>x</script> ![](http://evil/p.png) | `a` \x1b[2J\u202e"


class Elements(HTMLParser):
    """Names of the elements in a text, and the text in its `pre`."""

    def __init__(self):
        super().__init__()
        self.names, self.inside, self.text = [], False, ""

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.inside |= tag == "pre"

    def handle_endtag(self, tag):
        self.inside &= tag != "pre"

    def handle_data(self, data):
        self.text += data if self.inside else ""


def hostile_record():
    sample = corrected_record()
    spans = tuple(replace(span, text=HOSTILE) for span in sample.spans)
    reviews = tuple(
        RecordedReview(replace(review.review, reason=HOSTILE), HOSTILE if review.discarded_text else "")
        for review in sample.reviews
    )
    return replace(sample, spans=spans, reviews=reviews, prompt=HOSTILE, reward_why=HOSTILE)


def test_text_of_models_stays_text():
    block = example_markdown(Example("Title", hostile_record()))
    assert block.count("</pre>") == block.count("<pre>") == 1
    assert block.count("</details>") == 1
    elements = Elements()
    elements.feed(block)
    assert set(elements.names) <= {"details", "summary", "pre", "b", "i", "ins", "del"}
    assert "<script>x</script>" in elements.text
    assert "\x1b" not in block
    assert "\u202e" not in block
    # Markdown takes all of it as it is: nothing in it becomes a heading, a link or a picture
    assert MarkdownIt("gfm-like", {"linkify": False}).render(f"{block}\n\nend\n") == f"{block}\n<p>end</p>\n".replace(
        "</summary>\n\n<pre>", "</summary>\n<pre>"
    ).replace("</pre>\n\n</details>", "</pre>\n</details>")


@pytest.mark.parametrize("value", ["a|b", "a`b", "a\nb", "<b>", "\\|", "[x](y)"])
def test_values_of_settings_stay_in_their_cell(value):
    cell = code(value)
    assert not re.search(r"[|`\n\\]", cell)
    assert cell.count("<") == 2


def rollouts(run: RunFolder, update: int, prompt: str, control: float, intervened: float, reason: str = "no"):
    sample = corrected_record()
    reviews = tuple(RecordedReview(replace(r.review, reason=reason), r.discarded_text) for r in sample.reviews)
    plain = tuple(replace(span, author=Author.POLICY) for span in sample.spans)
    common = {"update": update, "prompt": prompt, "group": 0}
    run.append_rollouts(
        [
            replace(sample, row=0, role=Role.CONTROL, reward=control, reviews=(), spans=plain, **common),
            replace(sample, row=1, role=Role.INTERVENED, reward=intervened, reviews=reviews, **common),
        ]
    )


def test_examples_are_short_helped_and_misled(tmp_path):
    run = RunFolder(tmp_path)
    assert find_examples(tmp_path) == []
    rollouts(run, 1, "long", 0.0, 1.0, reason="because " * 20)
    rollouts(run, 2, "short", 0.0, 1.0)
    rollouts(run, 3, "short", 0.0, 1.0)
    rollouts(run, 4, "misled", 1.0, 0.0)
    rollouts(run, 5, "neither", 1.0, 1.0)
    prompts = [example.record.prompt for example in find_examples(tmp_path)]
    assert prompts == ["short", "long", "misled"]
    assert "misled" in find_examples(tmp_path, 2)[1].title
    assert [example.record.prompt for example in find_examples(tmp_path, 1)] == ["short"]
    assert find_examples(tmp_path, 0) == []
    assert [example.record.update for example in find_examples(tmp_path, until=1)] == [1]


def test_without_rescued_rollouts_any_intervention_is_shown(tmp_path):
    rollouts(RunFolder(tmp_path), 1, "neither", 1.0, 1.0)
    (example,) = find_examples(tmp_path)
    assert example.title == "An intervention"


def test_an_example_shows_a_cut_that_nothing_follows():
    sample = corrected_record()
    place = len(sample.ids)
    last = replace(sample.reviews[0].review, chunk_start=place - 1, chunk_tokens=2, kept_tokens=1, correction_tokens=0)
    last = replace(sample.reviews[0], review=replace(last, reason="too long"), discarded_text="and so on")
    assert last.cut == place
    block = example_markdown(Example("Title", replace(sample, reviews=(*sample.reviews, last))))
    assert "<del>and so on</del><i> [the judge: too long] </i>\n</pre>" in block


def test_a_long_response_is_shortened_between_its_interventions():
    sample = corrected_record()
    spans = tuple(
        replace(span, text="x" * 5000) if span.author is Author.POLICY else replace(span, text="JUDGE")
        for span in sample.spans
    )
    block = example_markdown(Example("Title", replace(sample, spans=spans)))
    assert len(block) < 6000
    assert "[…]" in block
    assert "<ins><b>JUDGE</b></ins>" in block
