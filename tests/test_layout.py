"""Which rows share a micro-batch and a process, and which need no forward: by hand, and as properties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mintrl_trl.objective.layout import (
    deal_rows,
    kept_columns,
    row_costs,
    rows_without_gradient,
    shorten,
    split_updates,
)


def test_costs_grow_with_the_square_of_the_length():
    assert row_costs(torch.tensor([1, 100]), hidden_size=8).tolist() == [1 * (96 + 1), 100 * (96 + 100)]


def test_rows_of_like_cost_share_a_micro_batch_and_processes_get_like_totals():
    dealt = deal_rows(torch.tensor([1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0]), processes=2, micro_batches=2)
    # Sorted: 9 8 | 7 6 | 4 3 | 2 1. The dearest two open a process each, the next goes to the one that has 7.
    assert dealt.tolist() == [[[1, 3], [2, 0]], [[5, 7], [6, 4]]]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(0, 50), min_size=48, max_size=48))
def test_every_row_is_dealt_once_and_no_process_waits_long(processes, micro_batches, rows, pool):
    costs = torch.tensor(pool[: processes * micro_batches * rows], dtype=torch.float64)
    dealt = deal_rows(costs, processes, micro_batches)
    assert dealt.shape == (processes, micro_batches, rows)
    assert sorted(dealt.flatten().tolist()) == list(range(len(costs)))
    padded = costs[dealt].amax(dim=2)  # (W, M)
    assert (padded.diff(dim=1) <= 0).all()  # the dearest first
    totals = padded.sum(dim=1)
    assert totals.max() - totals.min() <= padded.max()


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="5 rows do not divide into 2 x 1 micro-batches"):
        deal_rows(torch.ones(5), 2, 1)


def test_updates_share_the_rows_out_by_the_seed_alone():
    assert split_updates(4, 1, seed=3).tolist() == [[0, 1, 2, 3]]
    first, again, other = (split_updates(64, 4, seed) for seed in (7, 7, 8))
    assert first.shape == (4, 16) and sorted(first.flatten().tolist()) == list(range(64))
    assert torch.equal(first, again) and not torch.equal(first, other)


ADVANTAGES = torch.tensor([0.0, 0.0, 0.5, 0.0])
SCORED = torch.tensor([True, True, True, False])
ANCHORED = torch.tensor([False, True, False, True])


@pytest.mark.parametrize(
    ("scored", "moved", "dead"),
    [
        (SCORED, False, [True, False, False, True]),
        (SCORED, True, [False, False, False, True]),  # log-ratios are no longer 0
        (None, True, [True, True, False, True]),
    ],
)
def test_rows_without_gradient(scored, moved, dead):
    anchored = None if scored is None else ANCHORED
    assert rows_without_gradient(ADVANTAGES, scored=scored, anchored=anchored, moved=moved).tolist() == dead


def test_a_short_row_keeps_a_prompt_token_and_a_response_token():
    batch = {
        "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
        "completion_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
        "advantages": torch.zeros(2),
    }
    short = shorten(batch, torch.tensor([True, False]))
    assert short["prompt_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]
    assert short["completion_mask"].tolist() == [[1, 0, 0, 0], [1, 1, 1, 1]]
    assert batch["prompt_mask"].tolist()[0] == [0, 1, 1] and short["advantages"] is batch["advantages"]


@pytest.mark.parametrize(
    ("mask", "multiple", "kept"),
    [
        ([[0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 0]], None, (1, 6)),
        ([[0, 0, 1, 1, 0, 0, 0]], None, (2, 4)),  # a row that was cut short
        ([[0, 0, 1, 0, 0, 0, 0]], None, (2, 4)),  # no response token counts
        ([[0, 0, 0, 0, 0, 0, 0]], None, (2, 4)),
        ([[0, 0, 1, 1, 1, 0, 0]], 2, (1, 5)),
        ([[0, 0, 1, 1, 1, 1, 0]], 8, (0, 7)),
    ],
)
def test_columns_that_are_padding_in_every_row_go(mask, multiple, kept):
    columns = kept_columns(torch.tensor(mask), completion_width=4, multiple=multiple)
    assert (columns.start, columns.stop) == kept
