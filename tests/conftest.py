"""What every test gets: CPU, one thread, no network beyond this machine, fixed seeds, a fixed Hypothesis profile."""

import gc
import ipaddress
import os
import random
import shutil
import signal
import socket
import tempfile

# Read by libraries when they are imported, so they come before any other import.
os.environ.update(
    HF_HOME=tempfile.mkdtemp(prefix="mintrl-tests-"),
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    MPLBACKEND="Agg",
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
)

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=50)
hypothesis.settings.load_profile("fixed")


def pytest_configure(config):
    """Hide CUDA devices unless tests that need one were asked for; let interrupts arrive.

    A shell starts its background jobs with interrupts ignored, which Python inherits.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "not gpu" in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_unconfigure():
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)


@pytest.fixture(autouse=True)
def fixed_seeds():
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def loopback_only(request, monkeypatch):
    """Connections leave this machine only in tests marked `network`."""
    if request.node.get_closest_marker("network"):
        return
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            pytest.fail(f"a test reached for the network: {address!r}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def pytest_collection_finish() -> None:
    """What was imported stays: accelerate collects garbage after every run, and need not look through all of it."""
    gc.collect()
    gc.freeze()
