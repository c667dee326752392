"""A package outside the supported range is named once, with the range and the command to run."""

import configparser
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from mintrl_trl import versions
from mintrl_trl.errors import VersionError


@pytest.fixture
def installed(monkeypatch):
    """Installed versions as the check sees them; `None` is not installed."""
    found = {"trl": "1.16.0", "transformers": "5.24.0"}

    def version(package):
        if found[package] is None:
            raise PackageNotFoundError(package)
        return found[package]

    monkeypatch.setattr(versions, "version", version)
    versions.check_versions.cache_clear()
    yield found
    versions.check_versions.cache_clear()


@pytest.mark.parametrize("trl", ["1.16", "1.16.0", "1.16.7", "1.16.0.dev0", "1.16.1rc1", "1.16.0+local"])
def test_supported_versions_pass(installed, trl):
    installed["trl"] = trl
    versions.check_versions()


@pytest.mark.parametrize("trl", ["1.15.9", "1.17.0", "1.17.0.dev0", "0.29.1", "2.0", "1", "unknown"])
def test_other_versions_are_refused_in_plain_words(installed, trl):
    installed["trl"] = trl
    with pytest.raises(VersionError) as caught:
        versions.check_versions()
    message = str(caught.value)
    assert message.startswith(f"trl {trl} is installed; mintrl-trl needs trl>=1.16,<1.17,")
    assert message.endswith('pip install "trl>=1.16,<1.17"')
    assert isinstance(caught.value, ImportError)


def test_missing_package_is_named(installed):
    installed["transformers"] = None
    with pytest.raises(VersionError, match=r"transformers is not installed; mintrl-trl needs transformers>=5.17,<6,"):
        versions.check_versions()


def test_ranges_are_those_of_the_package_metadata():
    metadata = configparser.ConfigParser()
    metadata.read(Path(__file__).parents[1] / "setup.cfg")
    requirements = metadata["options"]["install_requires"].split()
    for package, (first, end) in versions.SUPPORTED.items():
        first, end = (".".join(map(str, bound)) for bound in (first, end))
        assert f"{package}>={first},<{end}" in requirements
