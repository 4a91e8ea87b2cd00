"""The parameter server: serves workers, shows progress, and saves checkpoints.

Run by ``python -m paceline.train.parameter_server``.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from paceline.train._display import Display
from paceline.train._values import bad_value, log, whole_number
from paceline.train.job import EXIT_NO_WORKERS, EXIT_STATE_LOST, EXIT_TERMINATED
from paceline.train.saving.store import Store

from ._agreement import read_description
from ._holder import Holder
from ._limits import MAX_EPOCHS, count, max_samples, number_type, printable_name
from ._training import NOT_FINITE, SharedTraining
from .handshake import Handshake, describe_error
from .peer import Peer
from .shards import MAX_FAILURES, SampleShare

_POLL_S = 0.05
# Maximum fraction of the time spent on saving. After a crash, the batches since the last checkpoint are repeated.
_MAX_SAVE_FRACTION, _MIN_SAVE_INTERVAL_S = 0.02, 1.0
# After training has ended, lost workers have this many seconds to reconnect and to learn that training is over.
# The log names them after a part of this time.
_END_NOTICE_S, _NAMED_AFTER_S = 30.0, 5.0
_MAX_PORT = 65535


class _Joining:
    """The first message of a worker. Raises ``ValueError`` if a field is invalid."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.worker = printable_name("worker", message["worker"])
        self.epochs = count("epochs", message["epochs"], MAX_EPOCHS, least=1)
        self.until: dict[str, Any] | None = message.get("until")
        self.description = read_description(message.get("description", {}))
        size = whole_number("size", message["size"], 0)
        dtype: torch.dtype = getattr(torch, number_type(message["dtype"]))
        self.model = size, count("summed", message["summed"], size), dtype
        batch_size = message.get("batch_size")
        self.batch_size = None if batch_size is None else whole_number("batch_size", batch_size)


class Server:
    """The parameter server of a training job.

    Each worker fetches the newest state, trains a batch with its own optimizer, and sends an update of the state. The
    server applies the updates in the order of arrival (asynchronous updates), so no worker waits for another worker. A
    batch counts as done if and only if its update is applied.

    Parameters
    ----------
    shares:
        Each worker's share in the schedule.
    host, port:
        Address to listen on; port 0 selects a free port.
    key:
        The secret that workers must have; empty for none.
    store:
        Store of the checkpoints; ``None`` for no checkpoints.
    display:
        Output for progress.
    stuck_s:
        Seconds after which a batch goes to another worker; at least ten times the worker's usual time for a batch.
    patience_s:
        Seconds without workers after which the server gives up.
    fixed:
        Whether shards are fixed: workers then do not take over samples from slower workers.
    """

    def __init__(
        self,
        shares: dict[str, SampleShare],
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
        self._training = SharedTraining(shares, stuck_s, fixed=fixed)
        self._store = store
        self._display = display
        self._patience_s = patience_s
        self._terminating = False
        self._saving = threading.Lock()
        self._handshake = Handshake(host, port, key, self._serve)
        self.port = self._handshake.port
        newest = store.load() if store is not None else None
        if newest is not None:
            content, path = newest
            self._training.restore(content)
            progress = self._training.progress("start")
            log(f"resuming from {path.name}: {progress.done} of {progress.total} samples are done")

    def run(self) -> int:
        """Serve until every sample of every epoch is done; return the exit code."""
        training = self._training
        next_save_s = next_show_s = 0.0
        waiting_since_s: float | None = None  # when training ended or the last worker left
        named = False  # whether the log has named the workers that do not know that training is over
        self._display.show(training.progress("start"))
        self._handshake.open()
        while True:
            now_s = time.monotonic()
            training.reassign_stuck()
            if training.all_excluded:
                log(f"every worker has failed {MAX_FAILURES} times: no workers are left")
                return EXIT_NO_WORKERS
            waiting_since_s = (waiting_since_s or now_s) if training.ended or training.has_no_workers else None
            waited_s = now_s - (waiting_since_s or now_s)
            if self._terminating:
                self.save()
                return EXIT_TERMINATED
            if training.state.loss:
                log(f"{training.state.loss}: a restart resumes from the last checkpoint")
                return EXIT_STATE_LOST
            if training.ended and (not training.uninformed or waited_s > _END_NOTICE_S):
                break
            if training.ended and waited_s > _NAMED_AFTER_S and not named:
                named = True
                names = ", ".join(training.uninformed)
                log(f"training is over: waiting up to {_END_NOTICE_S:g} s for an answer of {names}")
            if not training.ended and waited_s > self._patience_s:
                log(f"no worker for {self._patience_s:g} s: giving up")
                return EXIT_NO_WORKERS
            if now_s >= next_save_s and self.save():
                next_save_s = now_s + max(_MIN_SAVE_INTERVAL_S, (time.monotonic() - now_s) / _MAX_SAVE_FRACTION)
            if now_s >= next_show_s:
                self._display.show(training.progress("progress"))
                next_show_s = now_s + self._display.interval_s
            time.sleep(_POLL_S)
        training.state.collect()
        if training.state.loss and training.uninformed:
            return EXIT_STATE_LOST
        self.save()
        self._display.show(training.progress("finish"))
        return 0

    def terminate(self) -> None:
        """Request a checkpoint and the end of ``run``."""
        self._terminating = True

    def save(self) -> bool:
        """Write a checkpoint if there is a state; return whether there is a state."""
        with self._saving:
            content = self._training.content()
            if content is None:
                return False
            if self._store is None:
                return True
            try:
                self._store.save(content)
            except OSError as error:  # on a full disk, continue without this checkpoint
                log(f"cannot write a checkpoint, training continues: {error}")
            return True

    def _serve(self, peer: Peer, message: dict[str, Any], connection_id: int) -> bool:
        """Serve one connection; return whether to keep it open."""
        if "part" in message:
            address = peer.host, count("port", message["port"], _MAX_PORT, least=1)
            self._training.state.add_holder(Holder(printable_name("part", message["part"]), address, peer))
            return True
        if "leaves" in message:
            self._training.state.remove_holder(printable_name("leaves", message["leaves"]))
            peer.send({"kind": "ok"})
            return False
        joining = _Joining(message)
        worker = joining.worker
        try:
            if self._admit(peer, joining, connection_id):
                buffer: list[torch.Tensor] = []
                while self._handle_message(peer, worker, connection_id, buffer):
                    pass
        except Exception as error:  # a message may be invalid in any way; the worker's leases go to other workers
            self._training.disconnect(worker, connection_id, describe_error(error))
        return False

    def _admit(self, peer: Peer, joining: _Joining, connection_id: int) -> bool:
        """Admit or reject a worker; return whether it is admitted."""
        training, worker, model = self._training, joining.worker, joining.model
        reason = training.rejection_reason(worker, joining.epochs, *model, joining.until, joining.description)
        if reason is None and not training.state.is_set:
            size, summed, dtype = model
            initial = torch.empty(size, dtype=dtype)  # unlike zeros, takes memory only as far as numbers arrive
            peer.send({"kind": "begin"})
            peer.receive(initial)
            training.state.set_initial_state(initial, summed)
            self.save()  # a server that is killed later must not ask for the state again: the worker has changed it
            # Another worker may have sent its initial state first, with a different size.
            reason = training.rejection_reason(worker, joining.epochs, *model, description=joining.description)
        if reason is not None:
            log(f"{worker} is rejected: {reason}")
            peer.send({"kind": "excluded" if training.has_excluded(worker) else "rejected", "why": reason})
            return False
        training.join(worker, connection_id, joining.batch_size)
        layout, own_range = training.state.own_range()
        peer.send(
            {"kind": "welcome", "client": connection_id, "layout": layout, **training.progress_of(worker)}, own_range
        )
        return True

    def _handle_message(self, peer: Peer, worker: str, connection_id: int, sent: list[torch.Tensor]) -> bool:
        """Handle one message from a worker; return whether more messages may follow.

        ``sent`` is a buffer for the vector after the message. Messages reuse it, because allocation takes time.
        """
        training = self._training

        received = False
        own: list[torch.Tensor] = []  # memory for this message only

        def allocate(message: dict[str, Any], length: int) -> torch.Tensor:
            nonlocal received
            if message["kind"] == "keep":
                own.append(training.state.allocate_kept(length))
                return own[0]
            if message["kind"] == "order":
                own.append(torch.empty(count("samples", length, max_samples()), dtype=torch.int64))
                return own[0]
            received = True
            if not sent or len(sent[0]) != length:
                sent[:] = [training.state.allocate(length)]
            return sent[0]

        message = peer.receive(allocate)
        kind = message["kind"]
        if kind == "lease":
            answer = training.next_message(worker, connection_id)
            over = answer["kind"] == "over"
            peer.send(answer, training.state.snapshot() if over else None)
            if over:
                training.disconnect(worker, connection_id, "training is over", failed=False)
            return answer["kind"] not in ("over", "rejected")
        if kind == "done":
            update = sent[0] if received else torch.empty(0)
            reports = whole_number("reports", message["reports"], 0)
            result = message["number"], message["version"], update, message["reported"], reports
            counts = training.apply_change(worker, connection_id, *result)
            layout, own_range = training.state.own_range()
            kind = "moved" if counts is None else "accepted"
            peer.send({"kind": kind, "counts": counts, "layout": layout, **training.progress_of(worker)}, own_range)
        elif kind == "keep":
            training.keep(worker, connection_id, own[0])
        elif kind == "restore":
            peer.send({"kind": "kept"}, training.kept_for(worker))
        elif kind == "not finite":
            raise ValueError(NOT_FINITE)
        elif kind == "fail":
            raise ValueError("its training code has left the loop during a batch")
        elif kind == "check":
            training.state.check_holders()
            peer.send({"kind": "ok"})
        elif kind == "where":
            layout, own_range = training.state.own_range()
            peer.send({"kind": "there", "layout": layout}, own_range)
        elif kind == "order":
            if training.expects_order(worker, connection_id):  # as objects, the samples take several times the memory
                training.start_epoch(worker, connection_id, own[0].tolist() if own else [])
            peer.send({"kind": "ok"})
        elif kind == "stop":
            training.stop()
            peer.send({"kind": "ok"})
        elif kind == "leave":
            training.disconnect(worker, connection_id, "it has left", failed=False)
            return False
        else:
            raise bad_value("kind", kind, "lease, done, where, check, order, keep, restore, stop, fail or leave")
        return True
