"""Looks at everything a run needs before it starts, and says what is wrong and what to change (`mintrl doctor`).

It asks servers a few small questions, loads tokenizers and reads a few rows; it loads no weights and changes nothing.
"""

from .examine import examine
from .findings import Finding, Level

__all__ = ["Finding", "Level", "examine"]
