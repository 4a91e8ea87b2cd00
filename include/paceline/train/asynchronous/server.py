"""The parameter server: keeps the state of a training, hands out batches, adds up what comes back.

Run it as ``python -m paceline.train.asynchronous.server PLAN``, with the schedule as JSON: ``{"workers": {NAME:
{"samples": 600, "batch_size": 32}}}``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from paceline.train._checkpoint import folder_for
from paceline.train._display import Display, choose_display
from paceline.train._paths import ENV_SERVER_KEY
from paceline.train._store import Store
from paceline.train._values import bad_value, say
from paceline.train.progress import Progress

from .peer import GoneError, Peer, listen
from .shards import STRIKES, Part, Shards

PORT = 29500
_LOOK_S = 0.05
# Saving takes at most this share of the time; what a server that is killed has taken in since is trained again.
_SAVE_SHARE, _SAVE_EVERY_S = 0.02, 1.0
# A worker that is told to wait asks again after this time.
_WAIT_S = 0.5
_STUCK, _STUCK_S = 10.0, 60.0
# Who was lost shortly before the end comes again, and is to hear that it is over.
_GOODBYE_S = 30.0
# A server that nobody comes to for so long gives up.
_PATIENCE_S = 600.0
_EXIT_TERMINATED, _EXIT_NOBODY = 143, 4


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
    store:
        Where to keep the state of the training; nothing is kept without one.
    display:
        Where progress goes.
    stuck_s:
        A batch that takes so long, and ten times as long as the worker's batches mostly do, is given to another one.
    patience_s:
        How long to wait for workers while there is none.
    """

    def __init__(
        self,
        parts: dict[str, Part],
        host: str,
        port: int,
        store: Store | None,
        display: Display,
        stuck_s: float = _STUCK_S,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._parts = parts
        self._files = store
        self._key = os.environ.get(ENV_SERVER_KEY, "").encode()
        self._display = display
        self._stuck_s, self._patience_s = stuck_s, patience_s
        self._shards: Shards | None = None
        self._state: torch.Tensor | None = None
        self._lock = threading.Condition()
        self._connection: dict[str, int] = {}  # worker to its guest number: a newer one takes its place
        self._lent_s: dict[int, tuple[str, float]] = {}
        self._batch_s: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._asked_for_order = False
        self._know: set[str] = set()  # that it is over, or have been asked to end
        self._listener = listen(host, port)
        self.port: int = self._listener.address[1]
        self._load()

    def run(self) -> int:
        """Serve until every sample of every epoch is done; returns the exit code."""
        next_save_s = next_show_s = 0.0
        ended_s = None
        alone_since_s = time.monotonic()
        self._show("start")
        threading.Thread(target=self._accept, daemon=True).start()
        while True:
            now_s = time.monotonic()
            with self._lock:
                shards = self._shards
                self._take_back_stuck(now_s)
                if shards is not None and all(shards.excluded(name) for name in self._parts):
                    say(f"every worker has failed {STRIKES} times: nobody is left to train")
                    return _EXIT_NOBODY
                if self._connection:
                    alone_since_s = now_s
                elif now_s - alone_since_s > self._patience_s:
                    say(f"no worker for {self._patience_s:.0f} s: nobody is there to train")
                    return _EXIT_NOBODY
                if shards is not None and shards.ended:
                    ended_s = now_s if ended_s is None else ended_s
                    if self._all_know() or now_s - ended_s > _GOODBYE_S:
                        break
            if now_s >= next_save_s:
                self.save()
                cost_s = time.monotonic() - now_s
                next_save_s = now_s + max(_SAVE_EVERY_S, cost_s / _SAVE_SHARE)
            if now_s >= next_show_s:
                self._show("progress")
                next_show_s = now_s + self._display.interval_s
            time.sleep(_LOOK_S)
        self.save()
        self._show("finish")
        return 0

    def save(self) -> None:
        """Write the training's state: what the next server goes on from."""
        with self._lock:
            if self._files is None or self._shards is None or self._state is None:
                return
            content = {"state": self._state.clone(), "shards": json.dumps(self._shards.state())}
            content["epochs"] = self._shards.epochs
        try:
            self._files.save(content)
        except OSError as error:  # a full disk costs the checkpoint, not the training
            say(f"the checkpoint could not be written, the next one may be: {error}")

    def _load(self) -> None:
        found = self._files.load() if self._files is not None else None
        if found is None:
            return
        content, path = found
        self._shards = Shards(self._parts, content["epochs"])
        self._shards.load_state(json.loads(content["shards"]))
        self._state = content["state"]
        say(f"going on from {path.name}: {self._shards.samples_done} of {self._shards.samples} samples are done")

    def _accept(self) -> None:
        guest = 0
        while True:
            try:
                connection = self._listener.accept()
            except OSError as error:  # whoever came has gone again
                say(f"somebody came and went: {error}")
                continue
            guest += 1
            threading.Thread(target=self._serve, args=(connection, guest), daemon=True).start()

    def _serve(self, connection: Connection, guest: int) -> None:
        """Everything that is said to one worker."""
        worker = None
        peer = Peer(connection)
        try:
            peer.prove(self._key, first=True)
            words = peer.receive()
            worker = str(words["worker"])
            if self._welcome(peer, words, guest):
                assert self._state is not None
                change = torch.empty_like(self._state)
                while self._answer(peer, worker, guest, change):
                    pass
        except Exception as error:  # what is said may be wrong in any way: it costs whoever said it the connection
            why = str(error) if isinstance(error, (GoneError, ValueError)) else f"it said what cannot be: {error!r}"
            if worker is None:
                say(f"a connection has ended: {why}")
            else:
                self._lost(worker, guest, why)
        finally:
            peer.close()

    def _welcome(self, peer: Peer, words: dict[str, Any], guest: int) -> bool:
        """Let a worker in; returns whether it may stay."""
        worker, epochs, size = words["worker"], words["epochs"], words["size"]
        with self._lock:
            if self._shards is None:
                self._shards = Shards(self._parts, epochs)
            shards, state = self._shards, self._state
            why = None
            if not shards.knows(worker):
                why = f"the schedule gives nothing to {worker}"
            elif shards.excluded(worker):
                why = f"{worker} has failed {STRIKES} times and is left out for the rest of this training"
            elif epochs != shards.epochs:
                why = f"{worker} is to train {epochs} epochs, the others {shards.epochs}: run the same script"
            elif state is not None and len(state) != size:
                why = f"the model of {worker} has {size} numbers, that of the others {len(state)}: run the same script"
        if why is not None:
            peer.send({"kind": "sent away", "why": why})
            return False
        if state is None:
            given = torch.zeros(size, dtype=getattr(torch, words["dtype"]))
            peer.send({"kind": "begin"})
            peer.receive(given)
            with self._lock:
                self._state = given if self._state is None else self._state
        with self._lock:
            if worker in self._connection:
                self._lose(worker, "it has come again", strike=True)
            self._connection[worker] = guest
            shards.join(worker)
            self._lock.notify_all()
            self._know.discard(worker)
            failures = shards.strikes[worker]
            say(f"{worker} trains" + (f" (failures so far: {failures})" if failures else ""))
        peer.send({"kind": "welcome", "guest": guest, **self._place_of(worker)}, self._snapshot())
        return True

    def _answer(self, peer: Peer, worker: str, guest: int, change: torch.Tensor) -> bool:
        """Answer one thing that a worker says; returns whether there is more to come."""
        assert self._shards is not None
        words = peer.receive(change)
        kind = words["kind"]
        if kind == "lease":
            return self._lend(peer, worker, guest)
        if kind == "order":
            with self._lock:
                self._asked_for_order = False
                self._shards.begin_epoch(words["indices"])
                self._lock.notify_all()
            peer.send({"kind": "thanks"})
        elif kind == "done":
            counts = self._take_in(worker, guest, words, change)
            peer.send({"kind": "taken", "counts": counts, **self._place_of(worker)}, self._snapshot())
        elif kind == "stop":
            with self._lock:
                self._shards.stop()
                self._lock.notify_all()
            peer.send({"kind": "thanks"})
        elif kind == "leave":
            self._lost(worker, guest, "it was asked to end", strike=False)
            return False
        else:
            raise bad_value("kind", kind, "lease, order, done, stop or leave")
        return True

    def _lend(self, peer: Peer, worker: str, guest: int) -> bool:
        with self._lock:
            shards = self._shards
            assert shards is not None
            limit_s = time.monotonic() + _WAIT_S
            while self._connection.get(worker) == guest:
                if shards.wants_order and not self._asked_for_order:
                    self._asked_for_order = True
                    answer: dict[str, Any] = {"kind": "order"}
                    break
                lease = shards.lease(worker)
                if lease is not None:
                    self._lent_s[lease.number] = (worker, time.monotonic())
                    answer = {"kind": "lease", "number": lease.number, "epoch": lease.epoch}
                    answer["indices"] = list(lease.indices)
                    break
                if shards.ended:
                    answer = {"kind": "over"}
                    break
                # Who still has work must not be kept from it, and who has none asks again.
                if shards.holds(worker) or time.monotonic() >= limit_s:
                    answer = {"kind": "nothing"}
                    break
                self._lock.wait(_WAIT_S)
            else:
                answer = {"kind": "sent away", "why": f"another {worker} has taken its place"}
        over = answer["kind"] == "over"
        peer.send({**answer, **self._place_of(worker)}, self._snapshot() if over else None)
        if over:
            self._lost(worker, guest, "all is done", strike=False)
        return answer["kind"] not in ("over", "sent away")

    def _take_in(self, worker: str, guest: int, words: dict[str, Any], change: torch.Tensor) -> bool:
        """Add what a worker has learned from a batch, if the batch is still its own."""
        if not torch.isfinite(change).all():
            raise ValueError("what it has learned is not finite: is its learning rate too high, or its data damaged?")
        with self._lock:
            assert self._shards is not None
            assert self._state is not None
            if self._connection.get(worker) != guest or not self._shards.finish(worker, words["number"]):
                return False
            self._state += change
            _, began_s = self._lent_s.pop(words["number"])
            took_s = time.monotonic() - began_s
            self._batch_s[worker] = 0.8 * self._batch_s.get(worker, took_s) + 0.2 * took_s
            self._reported.update(words["reported"])
            self._lock.notify_all()
            return True

    def _all_know(self) -> bool:
        """Whether everybody who has ever come knows that it is over."""
        assert self._shards is not None
        come = (name for name, strikes in self._shards.strikes.items() if strikes or name in self._connection)
        return all(name in self._know or self._shards.excluded(name) for name in come)

    def _take_back_stuck(self, now_s: float) -> None:
        assert self._shards is not None or not self._lent_s
        for number, (worker, since_s) in list(self._lent_s.items()):
            if (
                now_s - since_s > max(self._stuck_s, _STUCK * self._batch_s.get(worker, 0.0))
                and self._shards is not None
            ):
                say(f"{worker} has not come back with a batch for {now_s - since_s:.0f} s: another one does it")
                self._shards.take_back(number)
                del self._lent_s[number]
                self._lock.notify_all()

    def _lost(self, worker: str, guest: int, why: str, *, strike: bool = True) -> None:
        with self._lock:
            if self._connection.get(worker) == guest:
                self._lose(worker, why, strike=strike)
                if not strike:
                    self._know.add(worker)

    def _lose(self, worker: str, why: str, *, strike: bool) -> None:
        assert self._shards is not None
        del self._connection[worker]
        handed_on = self._shards.lose(worker, strike=strike)
        self._lent_s = {number: held for number, held in self._lent_s.items() if held[0] != worker}
        self._asked_for_order = False
        self._lock.notify_all()
        if strike:
            count = self._shards.strikes[worker]
            left_out = ", which leaves it out for the rest of this training" if count >= STRIKES else ""
            say(f"{worker} is lost ({why}), {handed_on} samples go to the others; failure {count}{left_out}")

    def _place_of(self, worker: str) -> dict[str, int]:
        with self._lock:
            assert self._shards is not None
            return {"done": self._shards.done[worker], "total": self._shards.total(worker)}

    def _snapshot(self) -> torch.Tensor:
        with self._lock:
            assert self._state is not None
            return self._state.clone()

    def _show(self, event: str) -> None:
        with self._lock:
            shards = self._shards
            done, total = (shards.samples_done, shards.samples) if shards is not None else (0, 0)
            workers = len(shards.present) if shards is not None else 0
            failures = sum(shards.strikes.values()) if shards is not None else 0
            values = dict(self._reported)
        epochs = shards.epochs if shards is not None else 1
        self._display.show(
            Progress(
                done=done,
                total=max(total, 1),
                epoch=min(done * epochs // max(total, 1), epochs - 1),
                epochs=epochs,
                event=event,
                loss=values.pop("loss", None),
                metrics={**values, "workers": workers, "failures": failures},
                device="cpu",
                threads=torch.get_num_threads(),
                monotonic_s=time.monotonic(),
                wall_s=time.time(),
            )
        )


def read_plan(text: str) -> dict[str, Part]:
    """Read a schedule: worker to its part. Raises ``ValueError`` for anything else."""
    accepted = '{"workers": {NAME: {"samples": a number, "batch_size": a whole number}}}'
    try:
        workers = json.loads(text)["workers"]
        parts = {name: Part(float(one["samples"]), int(one["batch_size"])) for name, one in workers.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise bad_value("plan", text[:200], accepted) from None
    if not parts or any(part.samples <= 0 or part.batch_size < 1 for part in parts.values()):
        raise bad_value("plan", text[:200], accepted)
    return parts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a parameter server."""
    parser = argparse.ArgumentParser(prog="python -m paceline.train.asynchronous.server", description=__doc__)
    parser.add_argument("plan", type=Path, help="JSON file with the schedule")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", type=int, default=PORT, help=f"where to listen ({PORT}; 0 takes a free one)")
    help_text = f"seconds after which a batch that does not come back is given to another worker ({_STUCK_S:g})"
    parser.add_argument("--stuck-s", type=float, default=_STUCK_S, help=help_text)
    help_text = f"seconds after which a server without workers gives up ({_PATIENCE_S:g})"
    parser.add_argument("--patience-s", type=float, default=_PATIENCE_S, help=help_text)
    chosen = parser.parse_args(arguments)
    folder = folder_for(None)
    store = Store(folder) if folder is not None else None
    display = choose_display()
    plan = read_plan(chosen.plan.read_text())
    server = Server(plan, chosen.host, chosen.port, store, display, chosen.stuck_s, chosen.patience_s)
    say(f"the parameter server listens on {chosen.host}:{server.port}")

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(_EXIT_TERMINATED)

    signal.signal(signal.SIGTERM, leave)
    try:
        return server.run()
    except SystemExit:
        server.save()
        raise
    finally:
        display.close()


if __name__ == "__main__":
    sys.exit(main())
