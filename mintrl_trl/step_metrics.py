"""Where the time of an update goes, and what the device made of it.

Invariant: a number that cannot be known is absent, never 0.
"""


class TokenCount:
    """Tokens of the forward passes since they were last asked for, on this process.

    Example:

    ```python
    >>> count = TokenCount()
    >>> count.add(live=90, forwarded=100)
    >>> count.take(), count.take()
    ((90, 100), (0, 0))

    ```
    """

    def __init__(self):
        self.live = self.forwarded = 0

    def add(self, live: int, forwarded: int) -> None:
        """Count a forward pass.

        Args:
            live (`int`): Prompt and response tokens of the rows that are trained on.
            forwarded (`int`): All positions, padding and rows without gradient included.
        """
        self.live += int(live)
        self.forwarded += int(forwarded)

    def take(self) -> tuple[int, int]:
        """`(live, forwarded)` since the last call."""
        taken = self.live, self.forwarded
        self.live = self.forwarded = 0
        return taken
