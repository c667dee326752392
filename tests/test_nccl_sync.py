"""Weights from GPU to GPU, with gloo in their place: what the server is told, who waits for whom, and who fails."""

import asyncio
import threading
import time

import pytest
import torch

from mintrl_trl.errors import GenerationError, ServerLostError
from mintrl_trl.generation import nccl_sync
from mintrl_trl.generation.nccl_sync import NCCLSync
from mintrl_trl.generation.recovery import Recovery
from mintrl_trl.generation.server import LOST_KINDS, ServerError
from mintrl_trl.generation.servers import SyncToAll
from mintrl_trl.generation.vllm import VLLMGenerator

from .fake_vllm import CUT, END, HANG, Status, events
from .weight_receiver import Channel, Receiver

INIT, START, UPDATE, FINISH = (
    "/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update",
)  # fmt: skip
VERSION, CACHE = "/update_weight_version", "/reset_prefix_cache"


@pytest.fixture
def server():
    with Receiver() as fake:
        yield fake


@pytest.fixture
def channel():
    return Channel()


def weights(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"embed": torch.full((3, 2), float(value)), "head": torch.arange(4, dtype=torch.bfloat16) * value}


def assert_received(server: Receiver, value: float) -> None:
    expected = weights(value)
    assert list(server.received) == list(expected)
    for name, weight in expected.items():
        assert torch.equal(server.received[name], weight)
        assert server.received[name].dtype == weight.dtype


def posts(server: Receiver) -> list[str]:
    return [seen.path for seen in server.seen if seen.method == "POST"]


def made(server, channel, **options) -> NCCLSync:
    return NCCLSync(server.url, channel, run_id="run", **options)


def test_two_syncs_in_order(server, channel):
    sync = made(server, channel)
    assert sync.sync("0", weights()) == "policy"
    assert_received(server, 1)
    assert sync.sync("1", weights(2)) == "policy"
    assert_received(server, 2)
    sync.verify("1")
    one = [VERSION, CACHE, START, UPDATE, FINISH, CACHE, VERSION]
    assert posts(server) == [INIT, *one, *one]  # one group, for all syncs
    assert [body["new_version"] for body in server.bodies(VERSION)] == [
        "loading-weights-run-v-0", "weights-run-v-0", "loading-weights-run-v-1", "weights-run-v-1",
    ]  # fmt: skip
    assert server.bodies(INIT)[0]["init_info"]["world_size"] == 2
    info = server.bodies(UPDATE)[0]["update_info"]
    assert info == {"names": ["embed", "head"], "dtype_names": ["float32", "bfloat16"], "shapes": [[3, 2], [4]]}
    assert threading.main_thread() not in channel.threads


def test_an_update_that_the_server_refuses_is_an_error_at_once_and_nobody_waits_in_the_broadcast(server, channel):
    sync = made(server, channel)
    sync.sync("0", weights())
    server.faults[UPDATE].append(Status(500, "CUDA out of memory"))
    give_up = channel.abandon

    def give_up_and_wait(group):  # what our side says then is no cause
        give_up(group)
        channel.threads[-1].join(1)

    channel.abandon = give_up_and_wait
    started = time.monotonic()
    with pytest.raises(ServerError, match=rf"POST {server.url}{UPDATE} answered 500 .*CUDA out of memory"):
        sync.sync("1", weights(2))
    assert time.monotonic() - started < 2
    assert len(channel.abandoned) == 1
    channel.threads[-1].join(1)
    assert not channel.threads[-1].is_alive()
    assert_received(server, 1)
    for version in ("0", "1"):
        with pytest.raises(GenerationError, match="'loading-weights-run-v-1'"):
            sync.verify(version)
    sync.sync("1", weights(2))
    assert_received(server, 2)
    assert (channel.opened, posts(server).count(INIT)) == (2, 2)


def test_what_fails_on_our_side_is_an_error_long_before_the_server_gives_up(server, channel, monkeypatch):
    monkeypatch.setattr(nccl_sync, "GRACE_SECONDS", 0.3)
    sync = made(server, channel, timeout_seconds=60)

    def fail():
        raise RuntimeError("CUDA error: an illegal memory access")

    channel.before_send = fail
    server.faults[UPDATE].append(HANG)
    started = time.monotonic()
    with pytest.raises(GenerationError, match=rf"{UPDATE}: the trainer's end .* RuntimeError: CUDA error: an illegal"):
        sync.sync("0", weights())
    assert time.monotonic() - started < 3
    with pytest.raises(GenerationError, match="loading-"):
        sync.verify("0")


def test_both_sides_are_heard_where_both_fail(server, channel):
    sync = made(server, channel)

    def fail():
        raise RuntimeError("ours")

    channel.before_send = fail
    server.faults[UPDATE].append(0.3)
    server._update = lambda body: 1 / 0
    with pytest.raises(GenerationError, match=r"RuntimeError: ours\. The server says: .*division by zero"):
        sync.sync("0", weights())


def test_a_server_that_is_lost_counts_as_lost_whichever_side_notices_first(server, channel):
    def fail():
        raise RuntimeError("NCCL error: remote process exited")

    channel.before_send = fail
    server.faults[UPDATE].append(CUT)
    with pytest.raises(ServerError, match=UPDATE) as caught:
        made(server, channel).sync("0", weights())
    assert caught.value.kind in LOST_KINDS  # so that the weights are brought again


def test_a_broadcast_that_does_not_end_although_the_server_has_all(server, channel):
    stuck = threading.Event()
    channel.before_send = lambda: stuck.wait(20)
    server._update = lambda body: {"message": "Weights updated"}
    started = time.monotonic()
    with pytest.raises(GenerationError, match=r"did not finish within .* the server did not complain"):
        made(server, channel, timeout_seconds=1.0).sync("0", weights())
    assert time.monotonic() - started < 3
    stuck.set()


def test_a_silent_server_is_an_error_within_the_limit(server, channel):
    server.faults[UPDATE].append(HANG)
    started = time.monotonic()
    with pytest.raises(GenerationError, match=rf"POST {server.url}{UPDATE} failed after \d\.\d s: ReadTimeout"):
        made(server, channel, timeout_seconds=1.0).sync("0", weights())
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("fault", [Status(500, "no route to 10.0.0.1"), HANG], ids=["refused", "silent"])
def test_a_group_that_cannot_be_formed_leaves_the_version_before(server, channel, fault):
    server.faults[INIT].append(fault)
    words = "answered 500 .*no route to" if isinstance(fault, Status) else "ReadTimeout"
    with pytest.raises(GenerationError, match=rf"{INIT} .*{words}"):
        made(server, channel, timeout_seconds=1.0 if fault is HANG else 30.0).sync("0", weights())
    assert (server.weight_version, posts(server)) == ("default", [INIT])


def test_a_start_that_is_refused_sends_nothing(server, channel):
    server.active = True
    with pytest.raises(GenerationError, match=f"{START} answered 500 .*already active"):
        made(server, channel).sync("0", weights())
    assert server.received == {}


def test_a_half_finished_update_is_ended_so_that_the_next_may_start(server, channel):
    sync = made(server, channel)
    server._update, whole = (lambda body: 1 / 0), server._update
    with pytest.raises(GenerationError, match="division by zero"):
        sync.sync("0", weights())
    assert not server.active
    server._update = whole
    sync.sync("0", weights())
    assert_received(server, 1)


@pytest.mark.parametrize("transfer", [None, {"backend": "ipc"}], ids=["none", "another"])
def test_a_server_without_weight_transfer_is_told_what_it_needs(server, channel, transfer):
    server.transfer = transfer
    with pytest.raises(GenerationError, match=r"""--weight-transfer-config '\{"backend": "nccl"\}'"""):
        made(server, channel).sync("0", weights())
    assert channel.opened == 0


def test_a_server_without_development_mode_is_told_what_it_needs(server, channel):
    server.dev_mode = False
    with pytest.raises(GenerationError, match=r"answered 404.*VLLM_SERVER_DEV_MODE=1"):
        made(server, channel).sync("0", weights())


@pytest.mark.parametrize("count", [None, 0, "two"])
def test_a_server_that_does_not_tell_its_workers(server, channel, count):
    server._world_size = lambda body: {"world_size": count}
    with pytest.raises(GenerationError, match="gave no number of workers"):
        made(server, channel).sync("0", weights())


def test_open_requests_stop_a_sync_before_weights_are_touched(server, channel):
    server.script = lambda body: [*events(body["prompt"], [5, 4], finish=None)[:1], HANG]
    policy = VLLMGenerator(server.url, "policy", end_ids=[END], vocabulary_size=9)

    async def run():
        stream = policy.stream([7], 5, 0)
        await anext(stream)
        with pytest.raises(GenerationError, match="requests are still open"):
            await asyncio.to_thread(made(server, channel, idle_seconds=0.1).sync, "0", weights())
        await stream.aclose()
        await policy.aclose()

    asyncio.run(run())
    assert START not in posts(server)


def test_a_restarted_server_is_met_anew_before_it_gets_the_next_weights(server, channel):
    sync = made(server, channel)
    sync.sync("0", weights())
    server.restart()
    sync.sync("1", weights(2))
    assert_received(server, 2)
    assert (channel.opened, len(channel.abandoned)) == (2, 1)


def test_the_main_process_restores_and_the_others_wait_for_it(server, channel):
    main, other = made(server, channel), made(server, None)
    main.sync("0", weights())
    assert not main.restore("0")
    assert not other.restore("0")
    server.restart()
    with pytest.raises(ServerError, match=r"'default', not 'weights-run-v-0'.*The main process alone") as caught:
        other.restore("0")
    assert caught.value.retryable
    patient = Recovery(other.control, lambda: other.restore("0"), wait_seconds=10)
    waiting = threading.Thread(target=patient.restore)
    waiting.start()
    assert main.restore("0")
    waiting.join(10)
    assert not waiting.is_alive()
    assert_received(server, 1)
    assert patient.restored == 0


def test_waiting_for_the_main_process_has_an_end(server, channel):
    made(server, channel).sync("0", weights())
    server.restart()
    other = made(server, None)
    with pytest.raises(ServerLostError, match=r"is not back within 0\.2 s"):
        Recovery(other.control, lambda: other.restore("0"), wait_seconds=0.2).restore()


def test_weights_of_another_run_are_not_replaced_by_a_restore(server, channel):
    sync = made(server, channel)
    sync.sync("0", weights())
    server.weight_version = "weights-other-v-0"
    with pytest.raises(GenerationError, match="'weights-other-v-0'"):
        sync.restore("0")


def test_a_version_that_is_not_held_cannot_be_restored(server, channel):
    sync = made(server, channel)
    sync.sync("0", weights())
    sync.sync("1", weights())
    with pytest.raises(GenerationError, match="not 'weights-run-v-0'"):
        sync.restore("0")


def test_rollouts_go_on_from_restored_weights(server, channel):
    sync = made(server, channel)
    policy = VLLMGenerator(server.url, "policy", end_ids=[END], vocabulary_size=99)
    policy.use_weights("0", sync.sync("0", weights(3)))
    policy.recovery = Recovery(policy.control, lambda: sync.restore("0"), wait_seconds=5)
    broken = []

    def script(body):
        if broken:
            assert server.received
            return events(body["prompt"], [7, END])
        broken.append(1)
        server.restart()
        return [*events(body["prompt"], [8], finish=None), CUT]

    server.script = script

    async def run():
        ids = [token.id async for token in policy.stream([9], 99, 0)]
        await policy.aclose()
        return ids

    assert asyncio.run(run()) == [8, 7, END]
    assert_received(server, 3)
    assert policy.recovery.restored == 1


def test_several_servers_have_a_group_each_and_get_weights_one_after_the_other(server, channel):
    sending, most = [0], [0]

    def count():
        sending[0] += 1
        most[0] = max(most[0], sending[0])
        time.sleep(0.05)
        sending[0] -= 1

    channel.before_send = count
    with Receiver() as second:
        sync = SyncToAll([made(server, channel), made(second, channel)])
        assert sync.sync("0", weights(5)) == "policy"
        for fake in (server, second):
            assert_received(fake, 5)
        sync.verify("0")
        second.restart()
        assert sync.restore("0")
        assert_received(second, 5)
        sync.close()
    assert most == [1]
    assert channel.opened == 3
    assert len(channel.abandoned) == 3


def test_an_interrupt_leaves_the_group(server, channel, monkeypatch):
    sync = made(server, channel)
    sync.sync("0", weights())

    def interrupted(futures, timeout=None, return_when=None):
        if return_when is not None:
            raise KeyboardInterrupt
        return waited(futures, timeout=timeout)

    waited = nccl_sync.wait
    monkeypatch.setattr(nccl_sync, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sync.sync("1", weights(2))
    assert len(channel.abandoned) == 1
