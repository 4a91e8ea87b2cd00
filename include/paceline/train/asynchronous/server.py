"""The parameter server: listens to workers, shows progress, and saves the training.

Run by ``python -m paceline.train.asynchronous``.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from paceline.train._display import Display
from paceline.train._store import Store
from paceline.train._values import bad_value, say
from paceline.train.job import EXIT_BROKEN, EXIT_NOBODY, EXIT_TERMINATED

from .handshake import Handshake, why
from .peer import Peer
from .shards import STRIKES, SampleShare
from .spread import Holder
from .training import NOT_FINITE, SharedTraining

_LOOK_S = 0.05
# Saving takes at most this share of the time; what a server that is killed has taken in since is trained again.
_SAVE_SHARE, _SAVE_EVERY_S = 0.02, 1.0
# Who was lost shortly before the end comes again, and is to hear that it is over.
_GOODBYE_S = 30.0


class Server:
    """One training's parameter server.

    Workers learn on their own: each takes the newest state, trains a batch with its own optimizer, and sends by how
    much the state changed. The server adds that up in the order of arrival (asynchronous updates), so nobody waits for
    anybody. A batch and its change are taken in together or not at all.

    Parameters
    ----------
    parts:
        Worker to what the schedule gives it.
    host, port:
        Where to listen; port 0 takes a free one.
    key:
        The secret that workers have to prove; empty for none.
    store:
        Where to keep the state of the training; nothing is kept without one.
    display:
        Where progress goes.
    stuck_s:
        A batch that takes so long, and ten times as long as the worker's batches mostly do, is given to another one.
    patience_s:
        How long to wait for workers while there is none.
    fixed:
        Nobody takes over what is another's.
    """

    def __init__(
        self,
        parts: dict[str, SampleShare],
        host: str,
        port: int,
        *,
        key: bytes,
        store: Store | None,
        display: Display,
        stuck_s: float,
        patience_s: float,
        fixed: bool = False,
    ) -> None:
        self._training = SharedTraining(parts, stuck_s, fixed=fixed)
        self._store = store
        self._display = display
        self._patience_s = patience_s
        self._leaves = False
        self._handshake = Handshake(host, port, key, self._serve)
        self.port = self._handshake.port
        found = store.load() if store is not None else None
        if found is not None:
            content, path = found
            self._training.restore(content)
            at = self._training.progress("start")
            say(f"going on from {path.name}: {at.done} of {at.total} samples are done")

    def run(self) -> int:
        """Serve until every sample of every epoch is done; returns the exit code."""
        training = self._training
        next_save_s = next_show_s = 0.0
        since_s: float | None = None  # it has been over, or nobody has been there
        self._display.show(training.progress("start"))
        self._handshake.open()
        while True:
            now_s = time.monotonic()
            training.take_back_stuck()
            if training.hopeless:
                say(f"every worker has failed {STRIKES} times: nobody is left to train")
                return EXIT_NOBODY
            since_s = (since_s or now_s) if training.ended or training.alone else None
            waited_s = now_s - (since_s or now_s)
            if self._leaves:
                self.save()
                return EXIT_TERMINATED
            if training.broken:
                say(f"{training.broken}: it goes on from what was saved last")
                return EXIT_BROKEN
            if training.ended and (training.all_know or waited_s > _GOODBYE_S):
                break
            if not training.ended and waited_s > self._patience_s:
                say(f"no worker for {self._patience_s:g} s: nobody is there to train")
                return EXIT_NOBODY
            if now_s >= next_save_s and self.save():
                next_save_s = now_s + max(_SAVE_EVERY_S, (time.monotonic() - now_s) / _SAVE_SHARE)
            if now_s >= next_show_s:
                self._display.show(training.progress("progress"))
                next_show_s = now_s + self._display.interval_s
            time.sleep(_LOOK_S)
        training.gather()
        if training.broken and not training.all_know:
            return EXIT_BROKEN
        self.save()
        self._display.show(training.progress("finish"))
        return 0

    def leave(self) -> None:
        """Save what there is and end, soon."""
        self._leaves = True

    def save(self) -> bool:
        """Write the training's state, what the next server goes on from; returns whether there is any yet."""
        content = self._training.content()
        if content is None:
            return False
        if self._store is None:
            return True
        try:
            self._store.save(content)
        except OSError as error:  # a full disk costs the checkpoint, not the training
            say(f"the checkpoint could not be written, the next one may be: {error}")
        return True

    def _serve(self, peer: Peer, words: dict[str, Any], guest: int) -> bool:
        """Everything that is said to one guest; returns whether its connection is kept."""
        if "part" in words:
            self._training.spread_to(Holder(str(words["part"]), (peer.host, int(words["port"])), peer))
            return True
        if "leaves" in words:
            self._training.take_back_from(str(words["leaves"]))
            peer.send({"kind": "thanks"})
            return False
        worker = str(words["worker"])
        try:
            if self._welcome(peer, worker, words, guest):
                buffer: list[torch.Tensor] = []
                while self._answer(peer, worker, guest, buffer):
                    pass
        except Exception as error:  # as in ``handshake``, and what it was lent goes to the others
            self._training.lost(worker, guest, why(error))
        return False

    def _welcome(self, peer: Peer, worker: str, words: dict[str, Any], guest: int) -> bool:
        """Let a worker in; returns whether it may stay."""
        training, size = self._training, words["size"]
        why = training.why_not(worker, words["epochs"], size, words.get("until"))
        if why is None and not training.has_state:
            given = torch.zeros(size, dtype=getattr(torch, words["dtype"]))
            peer.send({"kind": "begin"})
            peer.receive(given)
            training.begin_with(given)
            why = training.why_not(worker, words["epochs"], size)  # another one may have been quicker
        if why is not None:
            peer.send({"kind": "left out" if training.has_left_out(worker) else "sent away", "why": why})
            return False
        size_of_batch = words.get("batch_size")
        training.join(worker, guest, size_of_batch if isinstance(size_of_batch, int) and size_of_batch > 0 else None)
        layout, own = training.own()
        peer.send({"kind": "welcome", "guest": guest, "layout": layout, **training.place_of(worker)}, own)
        return True

    def _answer(self, peer: Peer, worker: str, guest: int, sent: list[torch.Tensor]) -> bool:
        """Answer one thing that a worker says; returns whether there is more to come.

        A row that it sends is put into ``sent``, where the one before was: fresh memory costs time.
        """
        training = self._training

        came = False

        def room(words: dict[str, Any], length: int) -> torch.Tensor:
            nonlocal came
            came = True
            if not sent or len(sent[0]) != length:
                sent[:] = [training.room(length)]
            return sent[0]

        words = peer.receive(room)
        kind = words["kind"]
        if kind == "lease":
            answer = training.lend(worker, guest)
            over = answer["kind"] == "over"
            peer.send(answer, training.snapshot() if over else None)
            if over:
                training.lost(worker, guest, "all is done", strike=False)
            return answer["kind"] not in ("over", "sent away")
        if kind == "done":
            change = sent[0] if came else torch.empty(0)
            about = words["number"], words["version"], change, words["reported"], words["reports"]
            counts = training.take_in(worker, guest, *about)
            layout, own = training.own()
            kind = "moved" if counts is None else "taken"
            peer.send({"kind": kind, "counts": counts, "layout": layout, **training.place_of(worker)}, own)
        elif kind == "not finite":
            raise ValueError(NOT_FINITE)
        elif kind == "check":
            training.check()
            peer.send({"kind": "thanks"})
        elif kind == "where":
            layout, own = training.own()
            peer.send({"kind": "there", "layout": layout}, own)
        elif kind == "order":
            training.begin_epoch(worker, guest, words["indices"])
            peer.send({"kind": "thanks"})
        elif kind == "stop":
            training.stop()
            peer.send({"kind": "thanks"})
        elif kind == "leave":
            training.lost(worker, guest, "it was asked to end", strike=False)
            return False
        else:
            raise bad_value("kind", kind, "lease, done, where, check, order, stop or leave")
        return True
