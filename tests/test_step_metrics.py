"""Tokens, times and utilisation of an update, by hand."""

from mintrl_trl.step_metrics import TokenCount


def test_tokens_are_counted_until_they_are_taken():
    count = TokenCount()
    count.add(live=3, forwarded=5)
    count.add(live=4, forwarded=4)
    assert count.take() == (7, 9)
    assert count.take() == (0, 0)
