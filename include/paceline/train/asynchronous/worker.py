"""A worker's side of a training on several machines: what a ``track`` loop does where there is a parameter server."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.train import _rng
from paceline.train._part import check_divisible, loader_over
from paceline.train._values import say
from paceline.train.job import (
    ENV_EPOCHS,
    ENV_SERVER,
    ENV_SERVER_KEY,
    ENV_WORKER,
    EXIT_LEFT_OUT,
    EXIT_NO_SERVER,
    EXIT_SENT_AWAY,
)

from .peer import GoneError, Peer, address, reach
from .plan import NOTHING
from .ranges import Ranges
from .shards import Lease
from .vector import StateVector

if TYPE_CHECKING:
    from paceline.train._monitor import Converged
    from paceline.train._protocols import BatchLoop, LoopSession

# A server that was lost is started again by somebody; who has waited so long for it gives up.
_PATIENCE_S = 120.0
_AGAIN_S = 1.0
# Those who hold the state come and go seldom; who has not found them after so many tries will not.
_TRIES, _MOMENT_S = 20, 0.1


class TrainingWorker:
    """This process's part in a training that others take part in.

    Parameters
    ----------
    name:
        This worker's, as the schedule has it.
    server:
        ``host:port`` of the parameter server.
    key:
        The secret that the server asks for; empty for none.
    patience_s:
        How long to look for a server that does not answer.
    epochs:
        Train so many epochs, whatever the training code asks for.
    """

    def __init__(
        self,
        name: str,
        server: str,
        key: bytes = b"",
        patience_s: float = _PATIENCE_S,
        epochs: int | None = None,
    ) -> None:
        self.name = name
        self._host, self._port = address(server)
        self._key = key
        self._patience_s = patience_s
        self._peer: Peer | None = None
        self._ranges = Ranges(name, key)
        self._leases: deque[Lease] = deque()  # read, or about to be, and not done
        self._next: Lease | None = None  # asked for ahead: it tells whether an epoch ends
        self._over = False
        self._place = (0, 1, 1)  # batches done and to do, epochs
        self._seen: Any = None  # the state that the batch under way was begun with
        self._loader: Any = None
        self._until: Converged | None = None
        self._epochs = epochs
        self._began_s = self._update_s = self._idle_s = 0.0
        self._last_of_epoch = False
        self.spent = dict(NOTHING)
        """Where the time has gone, as of the last batch; see :class:`~paceline.train.progress.Progress`."""

    @classmethod
    def in_this_process(cls, environ: Mapping[str, str] = os.environ) -> TrainingWorker | None:
        """The worker that this process is to be; ``None`` if it trains alone."""
        server = environ.get(ENV_SERVER)
        key = environ.get(ENV_SERVER_KEY, "").encode()
        epochs = environ.get(ENV_EPOCHS)
        return cls(environ.get(ENV_WORKER, ""), server, key, epochs=int(epochs) if epochs else None) if server else None

    @property
    def measured(self) -> bool:
        """Whether it trains to be measured: for as long as that takes, whatever the training code thinks is enough."""
        return self._epochs is not None

    def batches(self, loop: BatchLoop, loader: Any, session: LoopSession) -> Iterator[Any]:
        """Give the batches that the server lends to this worker, and send what was learned from each."""
        check_divisible(loader, "a training on several machines")
        self._loader, self._session, self._vector = loader, session, StateVector(session.parts)
        self._seen = self._vector.read()
        part = loader_over(loader, _Lent(self))
        self._until = loop.monitor.until if loop.monitor is not None and not self.measured else None
        epochs = self._epochs or loop.epochs  # what the script asks for: it may become fewer
        self._come(epochs)
        self._began_s = time.monotonic()
        while not self._over:
            try:
                for batch in part:
                    if self._over:  # somebody has ended it all, or has done this batch meanwhile
                        break
                    lease = self._leases[0]
                    self._last_of_epoch = self._is_last(lease)
                    loop.stand_in(lease.epoch, *self._place, last=self._last_of_epoch)
                    yield batch
                    self._give_back()
            except GoneError as error:
                say(f"the parameter server is lost ({error}): looking for it")
                lost_s = time.monotonic()
                self._come(epochs)
                self._idle_s += time.monotonic() - lost_s
        self._vector.write(self._seen)
        loop.stand_in(self._place[2] - 1, *self._place, last=True)

    def stop(self) -> None:
        """End the training of all after the batch under way: ``stop_early`` was called here."""
        try:
            self._give_back()
            self._ask({"kind": "stop"})
            self._leases.clear()  # the server has taken back what is not done
            while not self._over:
                self._lease()
            self._vector.write(self._seen)
        except GoneError as error:
            say(f"the parameter server is lost ({error}) while this worker ended the training: it ends here alone")

    def close(self) -> None:
        """Leave: what this worker was lent goes to the others."""
        if self._peer is not None and not self._over:
            with contextlib.suppress(GoneError):
                self._peer.send({"kind": "leave"})
        self._hang_up()

    def lent(self) -> Iterator[Sequence[int]]:
        """Ask for batches, one ahead, until there is nothing to be had."""
        while True:
            lease, self._next = self._next or self._lease(), None
            if lease is None:
                return
            self._leases.append(lease)
            self._next = self._lease()
            yield lease.indices  # of a batch that does not count any more, if all is over now

    def _is_last(self, lease: Lease) -> bool:
        """Whether no other batch of its epoch is known to come here."""
        coming = self._leases[1] if len(self._leases) > 1 else self._next
        return coming is None or coming.epoch != lease.epoch

    def _lease(self) -> Lease | None:
        while not self._over:
            asked_s = time.monotonic()
            words = self._ask({"kind": "lease"})
            if words["kind"] == "lease":
                self._update_s += time.monotonic() - asked_s - words["waited_s"]
                self._idle_s += words["waited_s"]
                return Lease(words["number"], words["epoch"], words["indices"])
            if words["kind"] == "order":
                order = [index for batch in self._loader.batch_sampler for index in batch]
                self._ask({"kind": "order", "indices": order})
            elif words["kind"] == "over":
                self._over = True
            self._idle_s += time.monotonic() - asked_s
            if words["kind"] == "nothing" and self._leases:
                return None  # what is read already is to be done first
        return None

    def _give_back(self) -> None:
        """Send by how much a batch has changed the state, and go on from the newest."""
        began_s = time.monotonic()
        lease = self._leases.popleft()
        change = self._vector.change_since(self._seen)
        # As for a training alone, what the metric is at the end of an epoch counts.
        follows = self._until if self._last_of_epoch else None
        reports = self._session.newest(follows.metric)[0] if follows is not None else 0
        about = {"number": lease.number, "reported": self._session.reported(), "reports": reports}
        self._send(about, change)
        self._vector.write(self._seen)
        now_s = time.monotonic()
        self._update_s += now_s - began_s
        self.spent = {
            "samples": self.spent["samples"] + len(lease.indices),
            "batches": self.spent["batches"] + 1,
            "compute_s": round(now_s - self._began_s - self._update_s - self._idle_s, 4),
            "update_s": round(self._update_s, 4),
        }

    def _send(self, about: dict[str, Any], change: Any) -> None:
        """Send a batch's change to all who hold the state, and fetch the newest state from them."""
        if not change.isfinite().all():
            self._ask({"kind": "not finite"})  # for which the server ends the connection
        for _ in range(_TRIES):
            if self._reaching(self._ranges.push, about["number"], change):
                version = {"version": self._ranges.version}
                answer = self._ask({"kind": "done", **about, **version}, self._ranges.own(change))
                self._follow(answer["layout"])
                if answer["kind"] != "moved":
                    return self._fetch()
            else:
                self._follow(self._where())
        raise GoneError("the parts of the state do not come to rest")

    def _fetch(self) -> None:
        """Fetch the state from those who hold it beside the server, whose part has come with its answer."""
        for _ in range(_TRIES):
            if self._reaching(self._ranges.pull, self._seen):
                return
            self._follow(self._where())
        raise GoneError("the parts of the state do not come to rest")

    def _where(self) -> dict[str, Any]:
        """Ask who holds what: that has changed."""
        layout: dict[str, Any] = self._ask({"kind": "where"})["layout"]
        return layout

    def _follow(self, layout: dict[str, Any]) -> None:
        """Find those who hold the state. One that has just left is still where it was, as far as is known here."""
        for _ in range(_TRIES):
            if self._reaching(self._ranges.follow, layout):
                return
            time.sleep(_MOMENT_S)
            layout = self._where()
        raise GoneError("a part of the state cannot be reached from here")

    def _reaching(self, act: Callable[..., bool], *arguments: Any) -> bool:
        """Do something with those who hold the state; returns whether that was possible.

        If one has gone, the server looks whether it has gone for good; it may have given back what it held.
        """
        try:
            return act(*arguments)
        except GoneError:
            self._ranges.close()
            self._ask({"kind": "check"})
            return False

    def _ask(self, words: dict[str, Any], row: Any = None) -> dict[str, Any]:
        """Say something and return the answer; what comes with it of the state is put into ``_seen``.

        It is the beginning of it, or all.
        """
        assert self._peer is not None
        self._peer.send(words, row)
        answer = self._peer.receive(lambda _, length: self._seen[:length])
        if answer["kind"] in ("left out", "sent away"):
            say(f"{answer['kind']} by the parameter server: {answer['why']}")
            raise SystemExit(EXIT_LEFT_OUT if answer["kind"] == "left out" else EXIT_SENT_AWAY)
        if "done" in answer:
            self._place = (answer["done"], max(answer["total"], answer["done"], 1), answer["epochs"])
        return answer

    def _come(self, epochs: int) -> None:
        """Join the training, also where it has to be waited for."""
        self._leases.clear()
        self._next = None
        give_up_s = time.monotonic() + self._patience_s
        while True:
            self._hang_up()
            try:
                about: dict[str, Any] = {"epochs": epochs, "size": self._vector.size}
                about["until"] = self._until.to_dict() if self._until is not None else None
                about["batch_size"] = getattr(self._loader.batch_sampler, "batch_size", None)
                about["dtype"] = str(self._vector.dtype).removeprefix("torch.")
                self._peer = reach(self._host, self._port, self._key)
                answer = self._ask({"kind": "hello", "worker": self.name, **about})
                if answer["kind"] == "begin":
                    answer = self._ask({"kind": "state"}, self._vector.read())
                self._follow(answer["layout"])
                self._fetch()
                self._vector.write(self._seen)
                _rng.go_own_way(answer["guest"], 0)  # else all would drop out the same: they run the same script
                return
            except GoneError as error:
                if time.monotonic() > give_up_s:
                    say(f"no parameter server at {self._host}:{self._port} for {self._patience_s:.0f} s: {error}")
                    raise SystemExit(EXIT_NO_SERVER) from None
                time.sleep(_AGAIN_S)

    def _hang_up(self) -> None:
        self._ranges.close()
        if self._peer is not None:
            self._peer.close()
            self._peer = None


class _Lent:
    """A batch sampler of what the server lends."""

    def __init__(self, worker: TrainingWorker) -> None:
        self._worker = worker

    def __iter__(self) -> Iterator[Sequence[int]]:
        return self._worker.lent()
