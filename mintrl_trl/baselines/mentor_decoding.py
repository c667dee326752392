"""Mixed-policy rollouts: the student and the expert write them together, each with its own key-value cache.

A round gives every row up to K tokens. The student drafts K, one after the other; the expert reads all K in one pass;
then the drafts are taken up to the first one that the mixture refuses, and the token in its place is the expert's
(`mentor_mixing.py`). What was drafted beyond is forgotten. K = 1 is plain mixing. With noise that is a function of the
row's seeds and the token's position, a rollout does not depend on K, nor on the batch it is decoded in: K changes the
number of passes and nothing else.

Rows share prefixes in prefill and leave as soon as they end; waiting ones take their place. It trains nothing and knows
no text. Invariant: between rounds both caches hold exactly the tokens before a row's newest one.

Letters: B rows being decoded, K drafts, V tokens of the vocabulary.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import GenerationError
from ..generation.cache import RowCache
from ..generation.lent_model import LentModel, Weights
from ..generation.noise import draw, random_bits
from ..generation.prefill import Prefilled, prefill
from .mentor_mixing import acceptance, entropy, expert_weight, residual_logits

STUDENT, EXPERT = Weights.POLICY, Weights.BASE  # the expert stands where base weights usually do
_PREFILL_TOKENS = 8192  # read in one pass


@dataclass(eq=False)
class MixedRow:
    """One mixed rollout, from what is asked for to what came of it.

    Args:
        student_prefix (`tuple[int, ...]`): The prompt as the student reads it.
        expert_prefix (`tuple[int, ...]`): The prompt as the expert reads it.
        seeds (`tuple[int, int, int]`): For drafts, for taking them, for what replaces them; in [0, 2**63).
        max_tokens (`int`): At least 1.
        ids (`list[int]`): The response.
        by_expert (`list[bool]`): Per token, whether it replaces a draft.
        logps (`list[float]`): Per token, log-probability in nats under its author alone.
    """

    student_prefix: tuple[int, ...]
    expert_prefix: tuple[int, ...]
    seeds: tuple[int, int, int]
    max_tokens: int
    ids: list[int] = field(default_factory=list)
    by_expert: list[bool] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)


@dataclass
class MixingWork:
    """What it took to decode some rows.

    Args:
        drafted (`int`): Tokens that the student drew for them.
        judged (`int`): Of these, those up to the first refused one of each round.
        taken (`int`): Of these, those that stayed.
        weight (`float`): Sum of the expert's weights over the judged ones.
    """

    drafted: int = 0
    judged: int = 0
    taken: int = 0
    weight: float = 0.0


class MixedDecoder:
    """Decodes mixed rollouts.

    Args:
        models ([`LentModel`]): The student, and the expert as its `base_model`.
        end_ids (`Collection[int]`): Any of these ends a row.
        pad_id (`int`): Any valid id; it fills masked places.
        shared_ids (`int`): Ids from here on spell nothing; the expert gives them no weight.
        temperature (`float`, *optional*, defaults to 1.0): Of both models. Above 0.
        draft_tokens (`int`, *optional*, defaults to 4): K, at least 1.
        max_batch (`int`, *optional*, defaults to 256): Rows decoded at once.
    """

    def __init__(
        self,
        models: LentModel,
        *,
        end_ids: Collection[int],
        pad_id: int,
        shared_ids: int,
        temperature: float = 1.0,
        draft_tokens: int = 4,
        max_batch: int = 256,
    ):
        self._models, self._drafted = models, 0
        self._end_ids, self._pad_id, self._shared_ids = frozenset(end_ids), pad_id, shared_ids
        self._temperature, self._draft_tokens, self._max_batch = temperature, draft_tokens, max_batch

    @torch.no_grad()
    def decode(self, rows: Sequence[MixedRow], gamma: float, on_tokens: Callable[[int, int], None]) -> MixingWork:
        """Fill in the responses of `rows`, which are new.

        Args:
            rows (`Sequence[MixedRow]`): Any number.
            gamma (`float`): Entropy in nats from which on the expert has all the weight.
            on_tokens (`Callable[[int, int], None]`): Called after every round with the tokens that came and the rows
                that ended.

        Returns:
            [`MixingWork`].

        Raises:
            GenerationError: Logits of a model are not finite.
        """
        waiting, batch, work = deque(rows), _Batch(self._models, self._pad_id), MixingWork()
        with self._models.lent():
            while waiting or batch.rows:
                if room := self._max_batch - len(batch.rows):
                    batch.admit([waiting.popleft() for _ in range(min(room, len(waiting)))])
                judged = work.judged
                ended = self._round(batch, gamma, work)
                batch.remove(ended)
                on_tokens(work.judged - judged, len(ended))
        self._drafted += work.drafted
        return work

    def counters(self) -> dict[str, float]:
        """The work of both models so far, by metric name. The numbers only grow."""
        counted = {"mentor/drafted": float(self._drafted)}
        for kind, name in ((STUDENT, "policy"), (EXPERT, "expert")):
            counted[f"passes/{name}"] = float(self._models.forwards[kind])
            counted[f"positions/{name}"] = float(self._models.positions[kind])
        return counted

    def _round(self, batch: "_Batch", gamma: float, work: MixingWork) -> list[int]:
        """Up to K tokens for every row. Returns the places of the rows that ended, ascending."""
        drafts, student_logits, positions = self._draft(batch)
        pending = torch.stack([batch.newest[EXPERT], *drafts[:-1]], dim=1)  # (B, K)
        expert_logits = self._logits(batch, EXPERT, pending)  # (B, K, V)
        taken, draft_logps, weights = [], [], []
        for k, draft in enumerate(drafts):
            student, expert = self._logps(student_logits[k]), self._expert_logps(expert_logits[:, k], student_logits[k])
            weight = expert_weight(entropy(student), gamma)  # (B,)
            logp, expert_logp = (logps.gather(1, draft[:, None]).squeeze(1) for logps in (student, expert))
            chance = (
                random_bits(batch.seeds[1], positions + k, 1).squeeze(1).to(logp.dtype) * 2.0**-63
            )  # (B,) in [0, 1]
            taken.append(chance < acceptance(logp, expert_logp, weight))
            draft_logps.append(logp)
            weights.append(weight)
        kept = torch.stack(taken, dim=1).long().cumprod(dim=1).sum(dim=1)  # (B,) drafts before the first refused one
        ids, logps = torch.stack(drafts, dim=1), torch.stack(draft_logps, dim=1)  # (B, K)
        self._replace(batch, kept, student_logits, expert_logits, positions, ids, logps)
        work.drafted += ids.numel()
        return self._hand_out(batch, kept, ids, logps, torch.stack(weights, dim=1), work)

    def _draft(self, batch: "_Batch") -> tuple[list[Tensor], list[Tensor], Tensor]:
        """The student goes on alone: K ids (B,), the logits (B, V) they are drawn from, positions (B,) of the first."""
        positions = batch.lengths[STUDENT] + 1  # tokens before the one that is drawn, the newest included
        drafts, logits, newest = [], [], batch.newest[STUDENT]
        for k in range(min(self._draft_tokens, max(row.max_tokens - len(row.ids) for row in batch.rows))):
            logits.append(self._logits(batch, STUDENT, newest[:, None])[:, -1])
            newest, logps = draw(logits[-1], batch.seeds[0], positions + k, self._temperature)
            if not logps.isfinite().all():
                raise GenerationError("the model's logits are not finite; its weights may have diverged")
            drafts.append(newest)
        return drafts, logits, positions

    def _replace(
        self,
        batch: "_Batch",
        kept: Tensor,
        student_logits: list[Tensor],
        expert_logits: Tensor,
        positions: Tensor,
        ids: Tensor,
        logps: Tensor,
    ) -> None:
        """Where a draft was refused, put the expert's token into `ids` and its log-probability into `logps`."""
        refused = (kept < len(student_logits)).nonzero().squeeze(1)  # (R,) rows
        if not len(refused):
            return
        places = kept[refused]
        students = torch.stack(student_logits, dim=1)[refused, places]  # (R, V)
        student, expert = self._logps(students), self._expert_logps(expert_logits[refused, places], students)
        logits = residual_logits(student, expert)
        tokens, _ = draw(logits, batch.seeds[2][refused], positions[refused] + places, 1.0)
        ids[refused, places] = tokens
        logps[refused, places] = expert.gather(1, tokens[:, None]).squeeze(1)
        if not logps[refused, places].isfinite().all():
            raise GenerationError("the expert's logits are not finite, or give no weight to any token they share")

    def _hand_out(
        self, batch: "_Batch", kept: Tensor, ids: Tensor, logps: Tensor, weights: Tensor, work: MixingWork
    ) -> list[int]:
        """Give each row its tokens, up to its end, and forget what was drafted beyond them."""
        drafts = ids.shape[1]
        given, ended = [], []
        columns = zip(batch.rows, kept.tolist(), ids.tolist(), logps.tolist(), weights.tolist(), strict=True)
        for place, (row, number, row_ids, row_logps, row_weights) in enumerate(columns):
            count = min(number + 1, drafts, row.max_tokens - len(row.ids))
            count = next((k + 1 for k in range(count) if row_ids[k] in self._end_ids), count)
            row.ids += row_ids[:count]
            row.logps += row_logps[:count]
            row.by_expert += [k == number for k in range(count)]
            given.append(count)
            work.judged += count
            work.taken += min(count, number)
            work.weight += sum(row_weights[:count])
            if len(row.ids) == row.max_tokens or row.ids[-1] in self._end_ids:
                ended.append(place)
        batch.go_on(torch.tensor(given, device=ids.device), ids)
        return ended

    def _logits(self, batch: "_Batch", kind: Weights, ids: Tensor) -> Tensor:
        """Logits (B, T, V) after each of `ids` (B, T), which go into the cache."""
        mask, positions = batch.places(kind, ids.shape[1])
        self._models.use(kind)
        logits = self._models.logits(kind, ids, mask, positions, batch.caches[kind], keep=ids.shape[1])
        batch.read[kind] += ids.shape[1]
        return logits

    def _logps(self, logits: Tensor) -> Tensor:
        """Log-probabilities at the sampling temperature, in float32, or float64 if given so."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return (logits / self._temperature).log_softmax(-1)

    def _expert_logps(self, logits: Tensor, like: Tensor) -> Tensor:
        """The expert's log-probabilities (..., V) over the student's ids: none on what only one of them has."""
        known = self._logps(logits[..., : self._shared_ids])
        return torch.nn.functional.pad(known, (0, like.shape[-1] - self._shared_ids), value=-torch.inf)


class _Batch:
    """The rows that are decoded together, with both caches. Rows are right-aligned in each.

    Args:
        models ([`LentModel`]): Student and expert.
        pad_id (`int`): Fills masked places.
    """

    def __init__(self, models: LentModel, pad_id: int):
        self._models, self._pad_id = models, pad_id
        self._clear()

    def _clear(self) -> None:
        self.rows: list[MixedRow] = []
        self.caches: dict[Weights, RowCache] = {}
        none = torch.empty(0, dtype=torch.int64, device=self._models.device)
        self.lengths = {kind: none for kind in (STUDENT, EXPERT)}  # (B,) tokens in the cache, as of the last round
        self.read = dict.fromkeys((STUDENT, EXPERT), 0)  # columns added since
        self.newest = {kind: none for kind in (STUDENT, EXPERT)}  # (B,) newest token of each row, not in the cache
        self.seeds = none.view(3, 0)  # (3, B)

    def admit(self, rows: Sequence[MixedRow]) -> None:
        """Read the prompts of `rows` and let them join. A prompt's last token is read again, as its newest one."""
        if not rows:
            return
        device = self._models.device
        old = len(self.rows)
        for kind, prefixes in (
            (STUDENT, [row.student_prefix for row in rows]),
            (EXPERT, [row.expert_prefix for row in rows]),
        ):
            self._models.use(kind)
            read = _finished(prefill(self._models, kind, prefixes, self._pad_id, lambda: _PREFILL_TOKENS))
            if kind not in self.caches:
                self.caches[kind] = RowCache(like=read.cache)
            self.caches[kind].insert(read.cache, read.rows, max(map(len, prefixes)))
            again = torch.zeros(old + len(rows), dtype=torch.int64, device=device)
            again[old:] = 1
            self.caches[kind].forget(again)
            lengths = torch.tensor([len(prefix) - 1 for prefix in prefixes], device=device)
            self.lengths[kind] = torch.cat([self.lengths[kind], lengths])
            newest = torch.tensor([prefix[-1] for prefix in prefixes], device=device)
            self.newest[kind] = torch.cat([self.newest[kind], newest])
        self.rows += rows
        self.seeds = torch.cat([self.seeds, torch.tensor([row.seeds for row in rows], device=device).T], dim=1)

    def places(self, kind: Weights, columns: int) -> tuple[Tensor | None, Tensor]:
        """Mask (B, L + columns) and positions (B, columns) of the next columns of a cache that holds L."""
        held = self.lengths[kind] + self.read[kind]  # (B,)
        length = self.caches[kind].layers[0].keys.shape[2]
        positions = held[:, None] + torch.arange(columns, device=held.device)
        pads = (length - held)[:, None]
        mask = torch.arange(length + columns, device=held.device) >= pads if (pads > 0).any() else None
        return mask, positions

    def go_on(self, given: Tensor, ids: Tensor) -> None:
        """After a round: row b has got the first `given[b]` (B,) of `ids` (B, K)."""
        for kind, cache in self.caches.items():
            cache.forget(self.read[kind] - given)
            self.lengths[kind] = self.lengths[kind] + given
            self.read[kind] = 0
        self.newest = dict.fromkeys(self.newest, ids.gather(1, given[:, None] - 1).squeeze(1))

    def remove(self, leaving: Sequence[int]) -> None:
        """Close the gaps of the rows at the ascending places `leaving` with rows from the end."""
        if not leaving:
            return
        count, gone = len(self.rows) - len(leaving), set(leaving)
        if not count:
            self._clear()
            return
        targets = [place for place in leaving if place < count]
        sources = [place for place in range(count, len(self.rows)) if place not in gone]
        stay = list(range(count))
        for target, source in zip(targets, sources, strict=True):
            stay[target] = source
        self.rows = [self.rows[place] for place in stay]
        device = self.seeds.device
        to, of, stay = (torch.tensor(places, dtype=torch.int64, device=device) for places in (targets, sources, stay))
        self.seeds = self.seeds[:, stay]
        for kind, cache in self.caches.items():
            self.newest[kind], self.lengths[kind] = self.newest[kind][stay], self.lengths[kind][stay]
            spare = cache.layers[0].keys.shape[2] - int(self.lengths[kind].max())
            cache.keep(count, of, to, trim=spare)


def _finished(reading) -> Prefilled:
    """Run a prefill to its end: nobody waits meanwhile."""
    while True:
        try:
            next(reading)
        except StopIteration as done:
            return done.value
