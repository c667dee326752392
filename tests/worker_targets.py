"""Functions that the child processes of `test_worker.py` run. Imported there by name."""

import os
import time
from pathlib import Path


def double(request):
    return 2 * request


def process_id(request):
    return os.getpid()


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def swallow_everything(request):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass


def never_leave_c(request):
    return str(10 ** (10**10))


def die(request):
    os._exit(3)


def sleep_and_die(seconds):
    time.sleep(seconds)
    os._exit(3)


def die_once(marker):
    path = Path(marker)
    if not path.exists():
        path.write_text("died")
        os._exit(3)
    return "alive"


def fail(request):
    raise ValueError("the text of this error is never built")


def print_noise(request):
    print("noise" * 10_000, flush=True)
    os.write(1, b"more noise\n")
    return "quiet"


def hoard(megabytes):
    return len(bytearray(megabytes * 2**20))


def act(request):
    """Do what the request names, so that one pool can be given good and bad requests."""
    return globals()[request["do"]](request.get("with"))
