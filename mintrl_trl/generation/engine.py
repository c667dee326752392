"""The one thread that runs the model while requests are open.

It owns the life cycle: when the model is lent and given back, who may ask for work, and how everything ends. It knows
no tensors. Invariant: the model is touched by this thread only, only between lending and giving back, and `pause` and
`close` return after the model was given back.
"""

import threading
from collections.abc import Sequence

import torch

from ..errors import GenerationError
from .lane import Lane
from .lent_model import LentModel, Weights
from .requests import Outbox, Request

_STEPS_PER_TURN = 4  # for each kind of weights in turn, where changing between them is slow


class Engine:
    """Serves requests from a queue, on a thread that starts with the first of them.

    Args:
        model ([`LentModel`]): The model.
        lanes (`dict[Weights, Lane]`): One for each kind of weights.
        outbox ([`Outbox`]): The one that the lanes fill.
    """

    def __init__(self, model: LentModel, lanes: dict[Weights, Lane], outbox: Outbox):
        self._model, self._lanes, self._outbox = model, lanes, outbox
        self._changed = threading.Condition()
        # All below is guarded by `_changed`.
        self._arrivals: list[Request] = []
        self._thread: threading.Thread | None = None
        self._has_model = False  # whether the model is lent to the thread
        self._keep_model = False  # keep it when there is nothing to do
        self._paused = False
        self._closed = False

    @property
    def idle(self) -> bool:
        """Whether the model is with its owner and nothing waits."""
        with self._changed:
            return not self._has_model and not self._arrivals

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue `requests`; those that come together are read together.

        Raises:
            GenerationError: The engine is paused or closed.
        """
        with self._changed:
            if self._closed:
                raise GenerationError("the generator is closed")
            if self._paused:
                raise GenerationError(
                    "the generator is paused: its model is with the trainer. Ask inside `with generator.active():`, or "
                    "call `generator.resume()` once nothing else uses the model"
                )
            self._arrivals += requests
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mintrl-generator", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def resume(self, *, keep_model: bool) -> None:
        """Serve requests. With `keep_model` the model stays lent between them, until the next pause."""
        with self._changed:
            if self._closed:
                raise GenerationError("the generator is closed")
            self._paused, self._keep_model = False, keep_model

    def pause(self) -> None:
        """End all requests, refuse new ones, and return once the model is back with its owner."""
        with self._changed:
            self._paused = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._has_model and not self._arrivals)

    def stop(self) -> None:
        """Have the thread end all requests, give the model back and end. Does not wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """As [`Engine.stop`], and return once the thread has ended."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        torch.set_flush_denormal(True)  # of this thread only: masked attention weights would otherwise be slow numbers
        try:
            while self._wait_for_requests():
                if self._model.device.type == "cuda":
                    torch.cuda.set_device(self._model.device)  # a new thread starts on the first device
                # Not inference mode: buffers that a forward pass replaces (some rotary embeddings do) are trained with.
                with torch.no_grad(), self._model.lent():
                    self._serve()
                with self._changed:
                    self._has_model = False
                    self._changed.notify_all()
                self._outbox.send(at_once=True)
        finally:
            self._end_everything()

    def _wait_for_requests(self) -> bool:
        """Wait without the model. Returns false when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrivals or self._closed)
            self._has_model = bool(self._arrivals)
            return self._has_model

    def _serve(self) -> None:
        """Work until there is nothing to do, or until told to stop.

        What ends the last request stays in the outbox, so that its consumer hears of it with the model given back.
        """
        while True:
            with self._changed:
                busy = any(lane.has_work for lane in self._lanes.values())
                if not busy and self._keep_model:
                    self._changed.wait_for(lambda: self._arrivals or self._paused or self._closed)
                arrivals, self._arrivals = self._arrivals, []
                stopping = self._paused or self._closed
            if not busy and not arrivals and not (stopping or self._keep_model):
                return
            for request in arrivals:
                self._lanes[request.weights].add(request)
            if stopping:
                self._fail_all()
                return
            working = [lane for lane in self._lanes.values() if lane.has_work]
            steps = _STEPS_PER_TURN if len(working) > 1 and self._model.switches_slowly else 1
            for lane in working:
                for _ in range(steps):
                    self._step(lane)

    def _step(self, lane: Lane) -> None:
        try:
            lane.step(alone=not any(other.num_rows for other in self._lanes.values()))
        except Exception as error:  # out of memory, a broken model: whoever waits hears of it, the thread lives on
            lane.fail(f"decoding failed: {type(error).__name__}: {error}", error)
        if self._keep_model or any(other.has_work for other in self._lanes.values()):
            self._outbox.send(at_once=lane.is_reading)  # reading may take long, so nothing waits for its end

    def _fail_all(self) -> None:
        for lane in self._lanes.values():
            lane.fail("the generator was stopped", waiting=True)

    def _end_everything(self) -> None:
        """Whatever ended the thread, nobody is left waiting."""
        with self._changed:
            self._closed = True
            for request in self._arrivals:
                self._lanes[request.weights].add(request)
            self._arrivals = []
            self._fail_all()
            self._has_model = False
            self._changed.notify_all()
        self._outbox.send(at_once=True)
