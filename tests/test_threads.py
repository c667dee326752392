"""A small model on a CPU gets one thread, unless somebody has said how many."""

import pytest
import torch

from mintrl_trl.data.chains import base_model_path
from mintrl_trl.eval_models import find_models, local_generator
from mintrl_trl.generation import threads
from mintrl_trl.generation.threads import fitting_threads

SMALL = torch.nn.Linear(2, 2)


@pytest.fixture
def four(monkeypatch):
    """Four threads on four cores, and nothing in the environment."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "_cores", lambda: 4)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_a_small_model_gets_one_thread_while_it_is_there(four):
    (model,) = find_models([str(base_model_path())])
    with local_generator(model, temperature=1.0, max_batch=1, device="cpu"):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4
    with pytest.raises(KeyError), fitting_threads(SMALL):
        raise KeyError
    assert torch.get_num_threads() == 4


def test_a_large_model_and_one_elsewhere_keep_what_torch_takes(four, monkeypatch):
    with fitting_threads(torch.nn.Linear(2, 2, device="meta")):
        assert torch.get_num_threads() == 4
    monkeypatch.setattr(threads, "SMALL", 6)
    with fitting_threads(SMALL):
        assert torch.get_num_threads() == 4


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_what_the_environment_says_holds(four, monkeypatch, name):
    monkeypatch.setenv(name, "4")
    with fitting_threads(SMALL):
        assert torch.get_num_threads() == 4


def test_fewer_threads_than_torch_takes_are_a_choice(four, monkeypatch):
    monkeypatch.setattr(threads, "_cores", lambda: 16)
    with fitting_threads(SMALL):
        assert torch.get_num_threads() == 4
