"""Faults between a run and a real vLLM server: the run goes on, with the server's own tokens, by the right weights."""

import pytest

from mintrl_trl.reporting.run_folder import RunFolder

from ..fault_proxy import Answer, Cut, FaultProxy, Garbage
from .recorder import Recorder
from .runs import Comparing, assert_streamed, make_trainer
from .server import RealServer
from .test_vllm import record_prompt

pytestmark = [pytest.mark.servers, pytest.mark.timeout(900)]

COMPLETIONS = "/v1/completions"


def test_a_run_goes_on_through_faults(tmp_path):
    """Four streams an update begin at once, and each of them meets something."""
    faults = [Cut(1), Answer(503), Garbage(1), Cut(), Answer(429), Cut(1), Garbage(), Answer(500)]
    with RealServer(tmp_path / "server.log") as server, Recorder(server.url) as recorder:
        server.wait()
        with FaultProxy(recorder.url) as proxy:
            reward = Comparing([server], lambda: proxy.plan(COMPLETIONS, *faults))
            trainer = make_trainer(tmp_path / "run", proxy.url, reward, max_completion_length=40)
            proxy.plan(COMPLETIONS, *faults)
            trainer.train()
            trainer.close()
        lines = [line for line in RunFolder(tmp_path / "run").metrics() if "loss" in line]
        counted = {
            name: sum(line.get(f"server/{name}", 0) for line in lines)
            for name in ("repeated", "continued", "fault/status_503", "fault/status_429", "fault/status_500")
        }
        assert all(counted.values()), counted
        assert max(reward.apart) < 1e-3
        for record in RunFolder(tmp_path / "run").rollouts():
            assert_streamed(record, recorder.completions(), record_prompt(trainer, record))
