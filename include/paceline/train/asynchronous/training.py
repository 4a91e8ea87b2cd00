"""What a parameter server knows: the state of the training, who trains, and which batches are under way.

Asked by one thread for each worker and by ``server``'s own; it does no I/O but for what it tells people.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from paceline.train._monitor import Converged, Monitor
from paceline.train._values import say
from paceline.train.progress import Progress

from .peer import GoneError
from .shards import STRIKES, SampleShare, Shards
from .spread import Holder, Spread

NOT_FINITE = "what it has learned is not finite: is its learning rate too high, or its data damaged?"
# A worker that is told to wait asks again after this time.
_WAIT_S = 0.5
# Whose batch takes so many times as long as its batches mostly do has come to a stand.
_STUCK = 10.0


class SharedTraining:
    """One training, shared by the threads of a server.

    Workers are told apart by their name and by the number of the connection that they came with (``guest``): what an
    earlier connection of a worker says does not count any more once it has come again.

    Parameters
    ----------
    parts:
        Worker to what the schedule gives it.
    stuck_s:
        A batch that takes so long, and ten times as long as the worker's batches mostly do, is given to another one.
    fixed:
        Nobody takes over what is another's, see :class:`~paceline.train.asynchronous.shards.Shards`.
    """

    def __init__(self, parts: dict[str, SampleShare], stuck_s: float, *, fixed: bool = False) -> None:
        self._parts = parts
        self._fixed = fixed
        self._stuck_s = stuck_s
        self._shards: Shards | None = None  # known with the first worker, which tells how many epochs there are
        self._spread = Spread()
        self.broken: str | None = None
        """Why it cannot go on from here, but from what was saved last; ``None`` while it can."""
        self._lock = threading.Condition()
        self._connection: dict[str, int] = {}
        self._lent_s: dict[int, tuple[str, float]] = {}  # lease to who has it and since when
        self._batch_s: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._monitor: Monitor | None = None  # where the script says when the training has learned enough
        self._most_epochs = 0  # what the script asks for
        self._reports: dict[str, int] = {}  # how often each worker has reported the metric that is monitored
        self._asked_for_order: tuple[str, float] | None = None  # who, and when
        # Workers that have joined, also an earlier server, and neither know that it is over nor were asked to end.
        self._unaware: set[str] = set()

    # --- who trains -----------------------------------------------------------------------------------------------

    def why_not(self, worker: str, epochs: int, size: int, until: dict[str, Any] | None = None) -> str | None:
        """Why a worker may not train here; ``None`` if it may."""
        with self._lock:
            if self._shards is None:
                self._monitor = Monitor(Converged(**until), epochs) if until else None
                self._shards = Shards(self._parts, epochs, fixed=self._fixed)
                self._most_epochs = epochs
            shards = self._shards
            if not shards.knows(worker):
                return f"the schedule gives nothing to {worker}"
            if shards.excluded(worker):
                return f"{worker} has failed {STRIKES} times and is left out for the rest of this training"
            if epochs != self._most_epochs:
                return f"{worker} is to train {epochs} epochs, the others {self._most_epochs}: run the same script"
            others = self._spread.size if self._spread.begun else size
            if others != size:
                return f"the model of {worker} has {size} numbers, that of the others {others}: run the same script"
            return None

    def has_left_out(self, worker: str) -> bool:
        """Whether a worker has failed too often."""
        with self._lock:
            shards = self._shards
            return shards is not None and shards.knows(worker) and shards.excluded(worker)

    @property
    def has_state(self) -> bool:
        """Whether there is a state to begin with."""
        return self._spread.begun

    def begin_with(self, state: torch.Tensor) -> None:
        """Take a worker's state to begin with, unless another one was quicker."""
        with self._lock:
            if not self._spread.begun:
                self._spread.begin_with(state)

    def join(self, worker: str, guest: int, batch_size: int | None = None) -> None:
        """A worker begins to train, or comes again."""
        with self._lock:
            assert self._shards is not None
            if worker in self._connection:
                self._lose(worker, "it has come again", strike=True)
            self._connection[worker] = guest
            self._reports[worker] = 0
            self._shards.join(worker, batch_size)
            self._unaware.add(worker)
            self._lock.notify_all()
            failures = self._shards.strikes[worker]
            say(f"{worker} trains" + (f" (failures so far: {failures})" if failures else ""))

    def lost(self, worker: str, guest: int, why: str, *, strike: bool = True) -> None:
        """A worker's connection has ended; without a strike it was meant to."""
        with self._lock:
            if self._connection.get(worker) == guest:
                self._lose(worker, why, strike=strike)
                if not strike:
                    self._unaware.discard(worker)

    def _lose(self, worker: str, why: str, *, strike: bool) -> None:
        assert self._shards is not None
        del self._connection[worker]
        handed_on = self._shards.lose(worker, strike=strike)
        self._lent_s = {number: held for number, held in self._lent_s.items() if held[0] != worker}
        if self._asked_for_order is not None and self._asked_for_order[0] == worker:
            self._asked_for_order = None
        self._lock.notify_all()
        if strike:
            count = self._shards.strikes[worker]
            left_out = ", which leaves it out for the rest of this training" if count >= STRIKES else ""
            say(f"{worker} is lost ({why}), {handed_on} samples go to the others; failure {count}{left_out}")

    # --- what they do ---------------------------------------------------------------------------------------------

    def lend(self, worker: str, guest: int) -> dict[str, Any]:
        """What a worker is to do next, in words for it."""
        with self._lock:
            shards = self._shards
            assert shards is not None
            asked_s = time.monotonic()
            while self._connection.get(worker) == guest:
                if shards.wants_order and self._asked_for_order is None:
                    self._asked_for_order = worker, time.monotonic()
                    return {"kind": "order"}
                lease = shards.lease(worker)
                if lease is not None:
                    self._lent_s[lease.number] = (worker, time.monotonic())
                    about: dict[str, Any] = {"number": lease.number, "epoch": lease.epoch}
                    about |= {"indices": list(lease.indices), "waited_s": round(time.monotonic() - asked_s, 4)}
                    return {"kind": "lease", **about, **self._place_of(worker)}
                if shards.ended:
                    return {"kind": "over", **self._place_of(worker)}
                # Who still has work must not be kept from it, and who has none asks again.
                if shards.holds(worker) or time.monotonic() >= asked_s + _WAIT_S:
                    return {"kind": "nothing"}
                self._lock.wait(_WAIT_S)
            return {"kind": "sent away", "why": f"another {worker} has taken its place"}

    def begin_epoch(self, worker: str, guest: int, order: list[int]) -> None:
        """Begin an epoch with the order that a worker was asked for."""
        with self._lock:
            assert self._shards is not None
            asked = self._asked_for_order
            if self._connection.get(worker) == guest and asked is not None and asked[0] == worker:
                self._asked_for_order = None
                self._shards.begin_epoch(order)
                self._lock.notify_all()

    def take_in(
        self,
        worker: str,
        guest: int,
        number: int,
        version: int,
        change: torch.Tensor,
        reported: dict[str, float],
        reports: int = 0,
    ) -> bool | None:
        """Add what a worker has learned from a batch; returns whether it counts: not if another one does the batch.

        ``change`` is the server's own range of it, the other processes have theirs; ``None`` is the answer if the
        ranges are others by now than those of ``version``: it is to be sent again. ``reports`` is how often the worker
        has reported the metric that is monitored.
        """
        if not torch.isfinite(change).all():
            raise ValueError(NOT_FINITE)
        with self._lock:
            assert self._shards is not None
            if version != self._spread.version:
                return None
            own = len(self._spread.own())
            if len(change) != own:
                raise ValueError(f"change: got {len(change)} numbers, expected {own}")
            if self._connection.get(worker) != guest or not self._shards.finish(worker, number):
                return False
            try:
                self._spread.commit(worker, number, change)
            except Exception as error:  # the batch is taken for done, and some may have added its change
                self.broken = f"a part of the state is lost: {error}"
                return False
            took_s = time.monotonic() - self._lent_s.pop(number)[1]
            self._batch_s[worker] = 0.8 * self._batch_s.get(worker, took_s) + 0.2 * took_s
            self._reported.update(reported)
            if self._monitor is not None and reports > self._reports[worker]:
                self._reports[worker] = reports
                self._follow(self._monitor, self._shards)
            self._lock.notify_all()
            return True

    def _follow(self, monitor: Monitor, shards: Shards) -> None:
        """Let the number of epochs follow the metric that a worker has reported anew."""
        metric, before = monitor.until.metric, shards.epochs
        if monitor.enough is not None:
            return
        monitor.add(shards.epochs_done, self._reported.get(metric, math.nan))
        shards.set_epochs(monitor.epochs)
        if monitor.enough is not None:
            say(f"the training ends after {shards.epochs} epochs: {monitor.enough}")
        elif shards.epochs != before:
            say(f"{metric} is expected to need {shards.epochs} epochs")

    def stop(self) -> None:
        """End it all: a worker has seen that it is good enough."""
        with self._lock:
            assert self._shards is not None
            self._shards.stop()
            self._lock.notify_all()

    def take_back_stuck(self) -> None:
        """Give batches to others that do not come back; and ask another one for an order of samples that does not."""
        now_s = time.monotonic()
        with self._lock:
            if self._asked_for_order is not None and now_s - self._asked_for_order[1] > self._stuck_s:
                say(f"{self._asked_for_order[0]} has not said in which order its samples come: another one is asked")
                self._asked_for_order = None
                self._lock.notify_all()
            for number, (worker, since_s) in list(self._lent_s.items()):
                if now_s - since_s > max(self._stuck_s, _STUCK * self._batch_s.get(worker, 0.0)):
                    assert self._shards is not None
                    say(f"{worker} has not come back with a batch for {now_s - since_s:.0f} s: another one does it")
                    # It may only be slow: next time it has twice as long, else nothing it does would ever count.
                    self._batch_s[worker] = 2 * (now_s - since_s) / _STUCK
                    self._shards.take_back(number)
                    del self._lent_s[number]
                    self._lock.notify_all()

    # --- how it stands --------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether every sample of every epoch is done."""
        with self._lock:
            return self._shards is not None and self._shards.ended

    @property
    def alone(self) -> bool:
        """Whether nobody trains."""
        return not self._connection

    @property
    def hopeless(self) -> bool:
        """Whether every worker has failed too often."""
        with self._lock:
            return self._shards is not None and all(self._shards.excluded(name) for name in self._parts)

    @property
    def all_know(self) -> bool:
        """Whether everybody who has ever come knows that it is over."""
        with self._lock:
            assert self._shards is not None
            return all(self._shards.excluded(name) for name in self._unaware)

    def snapshot(self) -> torch.Tensor:
        """The newest state."""
        with self._lock:
            return self._spread.whole().clone()

    def room(self, length: int) -> torch.Tensor:
        """Where to put what a worker sends; its range may have been another when it sent that."""
        with self._lock:
            if length > self._spread.size:
                raise ValueError(f"state: got {length} numbers, expected {self._spread.size} at most")
            return torch.empty(length, dtype=self._spread.own().dtype)

    def own(self) -> tuple[dict[str, Any], torch.Tensor]:
        """Who holds which range of the state, and the server's own as it is now."""
        with self._lock:
            return self._spread.layout(), self._spread.own().clone()

    # --- who holds the state --------------------------------------------------------------------------------------

    def spread_to(self, holder: Holder) -> None:
        """Another process holds a range of the state from now on."""
        self._move(lambda: self._spread.join(holder), f"{holder.name} holds a part of the state")

    def take_back_from(self, name: str) -> None:
        """A process holds no range any more."""
        self._move(lambda: self._spread.leave(name), f"{name} holds no part of the state any more")

    def check(self) -> None:
        """Somebody cannot reach one that holds a range: see whether it is there."""
        self._move(lambda: self._spread.begun and self._spread.whole(), "")

    def gather(self) -> None:
        """All is done: the whole state is here from now on."""
        self._move(self._spread.end, "")

    def _move(self, move: Callable[[], object], said: str) -> None:
        began_s = time.monotonic()
        with self._lock:
            try:
                move()
            except GoneError as error:
                self.broken = f"a part of the state is lost: {error}"
                return
            took_s, processes = time.monotonic() - began_s, self._spread.processes
        if said:
            say(f"{said}; {processes} processes share it now. That took {1000 * took_s:.0f} ms")

    def place_of(self, worker: str) -> dict[str, int]:
        """How many batches a worker has done and will have done."""
        with self._lock:
            return self._place_of(worker)

    def _place_of(self, worker: str) -> dict[str, int]:
        assert self._shards is not None
        shards = self._shards
        return {"done": shards.done[worker], "total": shards.total(worker), "epochs": shards.epochs}

    def progress(self, event: str) -> Progress:
        """Samples done of all samples in all epochs, and what the workers have reported."""
        with self._lock:
            shards = self._shards or Shards(self._parts, 1)
            values: dict[str, float] = {**self._reported, "workers": len(shards.present)}
            values["failures"] = sum(shards.strikes.values())
            if self._spread.processes > 1:
                values["servers"] = self._spread.processes
            done, total = shards.samples_done, max(shards.samples, 1)
            return Progress(
                done=done,
                total=total,
                epoch=min(done * shards.epochs // total, shards.epochs - 1),
                epochs=shards.epochs,
                event=event,
                loss=values.pop("loss", None),
                metrics=values,
                threads=torch.get_num_threads(),
                monotonic_s=time.monotonic(),
                wall_s=time.time(),
            )

    def content(self) -> dict[str, Any] | None:
        """What a checkpoint has to hold; ``None`` while there is nothing."""
        with self._lock:
            if self._shards is None or not self._spread.begun or self.broken:
                return None
            try:
                state = self._spread.whole().clone()
            except GoneError as error:
                self.broken = f"a part of the state is lost: {error}"
                return None
            monitor = self._monitor
            followed = {"until": monitor.until.to_dict(), "curve": monitor.points} if monitor is not None else None
            return {
                "state": state,
                "shards": json.dumps(self._shards.state()),
                "epochs": self._most_epochs,
                "monitor": json.dumps(followed),
                "unaware": sorted(self._unaware),
            }

    def restore(self, content: dict[str, Any]) -> None:
        """Go on from what ``content`` returned."""
        self._most_epochs = content["epochs"]
        self._shards = Shards(self._parts, self._most_epochs, fixed=self._fixed)
        self._shards.load_state(json.loads(content["shards"]))
        self._unaware = set(content.get("unaware", ()))
        followed = json.loads(content.get("monitor", "null"))
        if followed is not None:
            self._monitor = Monitor(Converged(**followed["until"]), self._most_epochs)
            self._monitor.restore(followed["curve"])
            self._shards.set_epochs(self._monitor.epochs)
        self._spread.begin_with(content["state"])
