"""Folders go whatever a program has made of them, and nothing else does."""

import os

import pytest

from mintrl_trl.rewards.sandbox.folders import remove_folder


def make_deep() -> None:
    for _ in range(2000):
        os.mkdir("x" * 99)
        os.chdir("x" * 99)


def make_wide() -> None:
    for index in range(300):
        os.mkdir(f"x{index}")
        with open(f"x{index}/y", "w") as file:
            file.write("y")


def make_closed() -> None:
    os.makedirs("a/b/c")
    os.chmod("a/b", 0o300)
    os.chmod("a", 0)


def make_links() -> None:
    os.symlink("../outside", "folder")
    os.symlink("../outside/kept", "file")
    os.link("../outside/kept", "same")
    os.symlink("x", "x")


@pytest.mark.parametrize("make", [make_deep, make_wide, make_closed, make_links], ids=lambda make: make.__name__)
def test_folder_goes_and_its_neighbours_stay(make, tmp_path, monkeypatch):
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (outside / "kept").write_text("kept")
    monkeypatch.chdir(folder)
    make()
    monkeypatch.chdir(tmp_path)
    remove_folder(str(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").read_text() == "kept"


def test_no_folder_is_no_fault(tmp_path):
    remove_folder(None)
    remove_folder(str(tmp_path / "missing"))
