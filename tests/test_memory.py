"""Memory of an update: how it is read, what it is said to be made of, and what helps."""

import mmap

import pytest
import torch

from mintrl_trl.memory import Knobs, MemoryUse, ProcessMemory, memory_of, tensor_bytes, what_to_change

GIB = 2**30


def system(root, *, rss=1000, peak=3000, available=8000, cgroup=None):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text(f"Name: python\nVmHWM:\t{peak} kB\nVmRSS:\t{rss} kB\n")
    (root / "proc/self/clear_refs").write_text("")
    (root / "proc/meminfo").write_text(f"MemTotal: 9000 kB\nMemAvailable: {available} kB\n")
    if cgroup is not None:
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/memory.max").write_text(f"{cgroup}\n")
    return root


def test_main_memory_is_what_the_process_holds_and_its_part_of_the_rest(tmp_path):
    memory = ProcessMemory(processes=2, root=system(tmp_path))
    assert memory.held() == 1000 * 1024
    assert memory.peak() == 3000 * 1024
    assert memory.room() == (1000 + 4000) * 1024
    memory.reset()
    assert (tmp_path / "proc/self/clear_refs").read_text() == "5"


@pytest.mark.parametrize(("cgroup", "room"), [("max", 9000 * 1024), (2048 * 1024, 2048 * 1024)])
def test_a_container_may_allow_less(tmp_path, cgroup, room):
    assert ProcessMemory(root=system(tmp_path, cgroup=cgroup)).room() == room


def test_a_system_that_tells_nothing_still_knows_a_peak(tmp_path):
    memory = ProcessMemory(root=tmp_path)
    memory.reset()
    assert memory.room() is None
    assert memory.held() == memory.peak() > 2**20


def test_the_peak_of_this_process_follows_what_it_allocates():
    memory = memory_of(torch.device("cpu"))
    memory.reset()
    before = memory.held()
    block = mmap.mmap(-1, 2**26)  # fresh pages, where a tensor may get such as were freed before
    for page in range(0, 2**26, mmap.PAGESIZE):
        block[page] = 1
    held = memory.held()
    block.close()
    assert held - before > 60 * 2**20
    assert memory.peak() > held - 2**20  # the system counts in batches
    assert memory.room() > held


@pytest.mark.gpu
def test_the_peak_of_a_device_follows_what_it_allocates():
    memory = memory_of(torch.device("cuda", torch.cuda.current_device()))
    memory.reset()
    before = memory.held()
    block = torch.ones(2**24, device="cuda")  # 64 MiB
    held = memory.held()
    del block
    assert held - before == 2**26
    assert memory.peak() == held
    assert memory.reserved() >= held
    assert memory.room() > held


def test_a_tensor_that_is_there_twice_counts_once():
    weight = torch.zeros(10, 10)
    assert tensor_bytes([weight, weight, torch.zeros(3, dtype=torch.float64)]) == 400 + 24


def use(**given):
    return MemoryUse(
        **{
            "rows": 4,
            "prompt_tokens": 512,
            "completion_tokens": 1536,
            "place": "a device",
            "weights": 2 * GIB,
            "gradients": 2 * GIB,
            "optimizer": 4 * GIB,
            "held": 10 * GIB,
            "peak": 50 * GIB,
            "reserved": 52 * GIB,
            "room": 40 * GIB,
            "seconds": 1.0,
        }
        | given
    )


def knobs(**given):
    return Knobs(
        **{
            "rows": 4,
            "rows_per_update": 24,
            "prompt_tokens": 512,
            "completion_tokens": 1536,
            "gradient_checkpointing": True,
            "adapter": False,
            "sharded": False,
        }
        | given
    )


def test_a_report_adds_up():
    assert str(use()) == (
        "peak 50.00 of 40.00 GiB (125%) of a device, 52.00 reserved: "
        "weights 2.00, gradients 2.00, optimizer 4.00, activations 40.00, other 2.00 GiB"
    )
    assert str(use(room=None, reserved=None)).startswith("peak 50.00 GiB of a device: weights")
    assert use().size == "4 x (512 + 1,536) tokens"


def test_a_tenth_stays_free():
    assert use(peak=36 * GIB).fits
    assert not use(peak=36 * GIB + 1).fits
    assert use(room=None).fits


def test_a_smaller_micro_batch_that_fits_comes_first():
    """36 GiB are allowed and 10 are held: 26 of the 40 GiB of activations, 2.6 rows; 2 divide 24."""
    first, *others = what_to_change(knobs(), use())
    assert first == "per_device_train_batch_size=2 (about 30.0 GiB)"
    assert [other.split()[0] for other in others] == ["LoRA", "FSDP2"]


def test_shorter_responses_where_one_row_is_too_much():
    """6.5 GiB of 10 for a row: 0.65 of 2,048 tokens are 1,331, less the prompt 819, in whole 256s 768."""
    changes = what_to_change(knobs(gradient_checkpointing=False), use(held=29.5 * GIB, peak=69.5 * GIB))
    assert changes[:3] == [
        "per_device_train_batch_size=1 (about 39.5 GiB)",
        "gradient_checkpointing=True",
        "max_completion_length=768 (about 35.8 GiB)",
    ]


def test_weights_that_leave_no_room_are_named_first():
    changes = what_to_change(knobs(), use(held=38 * GIB))
    assert [change.split()[0] for change in changes[:2]] == ["LoRA", "FSDP2"]
    assert changes[2].startswith("per_device_train_batch_size=1")


def test_without_a_measurement_there_are_no_estimates():
    assert what_to_change(knobs(rows=1, rows_per_update=24, adapter=True, sharded=True), None) == [
        "max_completion_length=768"
    ]
    assert what_to_change(knobs(rows=6), None)[0] == "per_device_train_batch_size=3"
