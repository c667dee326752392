"""Uploads folders to a repository of the hub, one after the other, and keeps count of what failed.

It owns the repository's name, the connection, and a thread for uploads beside the training. It decides nothing about
when to push, and knows no trainer. Invariants: a repository is made private unless told otherwise, and nothing goes
to a public one while private is wanted; no call waits without end, whatever the hub does or asks for; a failed push is
counted and told, and raised to none but those who wait for it; a folder that was handed over is deleted afterwards.
"""

import logging
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, set_client_factory
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from huggingface_hub.utils import _http, get_session

from ..errors import ConfigError, HubError
from ..reporting.run_folder import jsonable

logger = logging.getLogger(__name__)

# Weights of an older push that this one has not: shards, or an adapter beside the model that it was merged into.
_OF_OLDER_WEIGHTS = ["model*.safetensors", "model.safetensors.index.json", "adapter_model*", "adapter_config.json"]
# How long a connection may be silent; huggingface_hub waits without end, so a hub that hangs would hold the run.
_ANSWER_SECONDS, _UPLOAD_SECONDS = 30.0, 300.0
_LONGEST_PAUSE = 300  # seconds that the hub may ask for before the next try: the time over which it counts requests
_PAUSE = re.compile(r"(\bt\s*=\s*|^)(\d+)")  # in the headers RateLimit and Retry-After


class HubPusher:
    """A repository to push a model to.

    Args:
        repo (`str`): `owner/name`, or `name` for one of the token's owner.
        token (`str`, *optional*): Of the hub. By default the one that `hf auth login` saved, or `$HF_TOKEN`.
        private (`bool`, *optional*, defaults to `True`): Whether the repository is, or is made, private; `None` leaves
            that to the hub.
        revision (`str`, *optional*): The branch to push to.
    """

    def __init__(
        self,
        repo: str,
        *,
        token: str | None = None,
        private: bool | None = True,
        revision: str | None = None,
    ):
        self.repo, self.private, self.revision = repo, private, revision
        self.api = HfApi(token=token, library_name="mintrl_trl")
        self.pushes = self.failed_pushes = 0
        self._made = False
        self._lock = threading.Lock()  # one push at a time, whoever waits for it
        self._thread: ThreadPoolExecutor | None = None
        self._pending: list[Future] = []

    def counters(self) -> dict[str, float]:
        """Pushes since it was made, by metric name. The numbers only grow."""
        return {"hub/pushes": float(self.pushes), "hub/failed_pushes": float(self.failed_pushes)}

    @property
    def busy(self) -> bool:
        """Whether a push is on its way, or waits for its turn."""
        self._pending = [future for future in self._pending if not future.done()]
        return bool(self._pending)

    def prepare(self) -> None:
        """Make the repository, once, and see that it may be pushed to, each time: a run lasts for days.

        Raises:
            HubError: It cannot be made or reached, or is not private while private is wanted.
        """
        try:
            _wait_at_most(_ANSWER_SECONDS)
            if not self._made:
                self.repo = self.api.create_repo(self.repo, private=self.private, exist_ok=True).repo_id
                self._made = True
            is_private = self.api.repo_info(self.repo).private if self.private else True
        except Exception as error:
            raise HubError(f"the repository {self.repo} could not be made or reached: {_in_words(error)}") from error
        if not is_private:
            raise HubError(
                f"the repository {self.repo} is public, and the model is to be private. Name another repository, make "
                "this one private, or set hub_private_repo=false (on the command line of `mintrl push`, --public)."
            )

    def push(self, folder: Path, message: str) -> Any:
        """Upload a folder now, after those that wait.

        Args:
            folder (`Path`): What to upload. It is deleted afterwards, whatever happens.
            message (`str`): Of the commit.

        Returns:
            `CommitInfo`: The commit.

        Raises:
            HubError: It could not be uploaded; that is counted.
        """
        try:
            with self._lock:
                self.prepare()
                _wait_at_most(_UPLOAD_SECONDS)
                commit = self.api.upload_folder(
                    repo_id=self.repo,
                    folder_path=folder,
                    commit_message=message,
                    revision=self.revision,
                    delete_patterns=_OF_OLDER_WEIGHTS,
                )
        except Exception as error:
            self.failed_pushes += 1
            if isinstance(error, HubError):
                raise
            raise HubError(f"the push to {self.repo} failed: {_in_words(error)}") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.pushes += 1
        return commit

    def push_beside(self, folder: Path, message: str) -> Future:
        """Upload a folder beside the training; a failure is told in the log, and raised by the future's `result`."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="hub")
        future = self._thread.submit(self.push, folder, message)
        future.add_done_callback(_tell_failure)
        self._pending.append(future)
        return future

    def wait(self) -> None:
        """Wait for all pushes beside the training. What failed has been told and counted."""
        if self.busy:
            logger.info("Waiting for the push to %s to be finished.", self.repo)
        for future in self._pending:
            future.exception()
        self._pending.clear()

    def licence_of(self, model: str) -> str | None:
        """The licence of a model of the hub; `None` where it has none, or cannot be asked.

        Raises:
            RepositoryNotFoundError: There is no such model.
        """
        try:
            data = self.api.model_info(model, timeout=10).card_data
        except GatedRepoError:  # there, and for others
            return None
        except RepositoryNotFoundError:
            raise
        except Exception as error:
            logger.info("The licence of %s is not known: %s", model, _in_words(error))
            return None
        found = data.get("license") if isinstance(data, Mapping) else getattr(data, "license", None)
        return found if isinstance(found, str) else None


def refuse_public_table(args: Any) -> None:
    """Whether TRL's completions table, with all its prompts, would go to a public data set while private is wanted.

    Args:
        args ([`MInTRLConfig`]): `log_completions_hub_repo` is TRL's setting; it makes a repository that does not exist.

    Raises:
        ConfigError: It would.
    """
    repo = args.log_completions_hub_repo
    if not (args.log_completions and repo and args.hub_private_repo):
        return
    try:
        _wait_at_most(_ANSWER_SECONDS)
        is_private = HfApi(token=args.hub_token).repo_info(repo, repo_type="dataset").private
    except Exception as error:  # none yet, or no connection: TRL comes to the same a moment later
        logger.info("Whether %s is private is not known: %s", repo, _in_words(error))
        return
    if not is_private:
        allowed = "a private data set, or a new one, while hub_private_repo is true"
        fix = "name another, make this one private, or set hub_private_repo=false"
        raise ConfigError("log_completions_hub_repo", repo, allowed, fix)


def tell_failure(error: BaseException) -> None:
    """Say that a push failed and that nothing else did."""
    logger.warning("%s. The model is safe on this machine; training goes on.", str(error).rstrip("."))


class _LimitedClients:
    """Opens the clients of huggingface_hub, each with our limits: it opens another one after a refused connection."""

    def __init__(self, opened: Callable[[], Any]):
        self._opened, self.seconds = opened, _ANSWER_SECONDS

    def __call__(self) -> Any:
        client = self._opened()
        client.timeout = self.seconds
        client.event_hooks["response"].append(_shorten_pause)
        return client


def _wait_at_most(seconds: float) -> None:
    """How long huggingface_hub waits for an answer, from now on; what else was set for its clients stays."""
    clients = _http._GLOBAL_CLIENT_FACTORY
    if not isinstance(clients, _LimitedClients):
        clients = _LimitedClients(clients)
        set_client_factory(clients)
    clients.seconds = get_session().timeout = seconds


def _shorten_pause(response: Any) -> None:
    """What a hub asks for before the next try, huggingface_hub sleeps, however long that is."""
    for name in ("RateLimit", "Retry-After"):
        if name in response.headers:
            asked = response.headers[name].strip()
            response.headers[name] = _PAUSE.sub(lambda found: f"{found[1]}{min(int(found[2]), _LONGEST_PAUSE)}", asked)


def _tell_failure(future: Future) -> None:
    error = None if future.cancelled() else future.exception()
    if error is not None:
        tell_failure(error)


def _in_words(error: Exception) -> str:
    """An error of the hub on one line, without anything that could be a secret."""
    causes: list[BaseException] = [error]
    while causes[-1].__cause__ is not None and len(causes) < 4:  # "error while uploading" tells less than why
        causes.append(causes[-1].__cause__)
    said = [f"{type(cause).__name__}: {' '.join(str(cause).split())}"[:300] for cause in causes]
    return jsonable("; ".join(said))
