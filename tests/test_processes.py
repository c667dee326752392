"""What one process sees of the means that keep several in step; two are in `test_two_processes.py`."""

import pytest
import torch

from mintrl_trl.errors import NumericsError
from mintrl_trl.processes import FiniteLosses, all_or_none


def test_one_process_raises_what_it_raises():
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught, all_or_none(instead=pytest.fail):
        raise error
    assert caught.value is error


def test_one_process_leaves_the_block_as_it_is():
    with all_or_none():
        done = True
    assert done


@pytest.mark.parametrize(("bad", "shown"), [(torch.nan, "nan"), (torch.inf, "inf"), (-torch.inf, "-inf")])
def test_a_loss_of_any_micro_batch_counts(bad, shown):
    losses = FiniteLosses()
    for value in (0.5, bad, -0.5):
        losses.add(torch.tensor(value, requires_grad=True))
    with pytest.raises(NumericsError, match=f"the loss of update 7 is {shown}; no weight was changed"):
        losses.check(7)


def test_each_update_is_checked_by_itself():
    losses = FiniteLosses()
    losses.add(torch.tensor(torch.nan))
    with pytest.raises(NumericsError):
        losses.check(1)
    losses.add(torch.tensor(0.5))
    losses.check(2)
