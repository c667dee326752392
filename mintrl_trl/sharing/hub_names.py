"""Which names of models and data sets could be the hub's, and which lie on a machine.

It looks at names and at what exists here; it asks no hub.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w-][\w.-]*")
_DATA_FILES = (".json", ".jsonl", ".csv", ".tsv", ".txt", ".parquet", ".arrow", ".gz", ".zip", ".zst")


def is_hub_id(name: str, folder: Path = Path()) -> bool:
    """Whether a model or data set could be one of the hub's: no path, and nothing on this machine, here or seen from
    another folder."""
    there = Path(name).exists() or (folder / name).exists()
    return bool(_HUB_ID.fullmatch(name)) and not there and not name.startswith(".") and not name.endswith(_DATA_FILES)


def started_in(run: Path, settings: Mapping[str, Any]) -> Path:
    """The folder that a run was started in, from which its paths are seen; this one where that cannot be known."""
    written, named = run.resolve(), Path(str(settings.get("output_dir") or "."))
    ends = 0 < len(named.parts) < len(written.parts) and written.parts[-len(named.parts) :] == named.parts
    return written.parents[len(named.parts) - 1] if ends else Path()
