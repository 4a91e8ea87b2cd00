"""The parameter server's view of a training job: its workers, its epochs, and the batches in flight.

Used by one thread per worker and by the main thread of ``_server``. No I/O except in logging and ``_state``.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from paceline.train._values import log
from paceline.train.pacing.monitor import Converged, Monitor
from paceline.train.progress import Progress

from ._agreement import Agreement, Description
from ._in_flight import BatchesInFlight
from ._limits import metrics
from ._state import SharedState
from .shards import MAX_FAILURES, SampleShare, Shards

NOT_FINITE = "its change is not finite: is the learning rate too high, or the data damaged?"
# A worker waits for a batch for at most this many seconds, then asks again.
_WAIT_S = 0.5


class SharedTraining:
    """A training job, shared by the threads of a parameter server.

    A worker is identified by its name and the number of its connection. After a worker has reconnected, messages from
    its earlier connection are ignored.

    Parameters
    ----------
    shares:
        Each worker's share in the schedule.
    stuck_s:
        Seconds after which a batch goes to another worker; at least ten times the worker's usual time for a batch.
    fixed:
        Whether shards are fixed, see :class:`~paceline.train.parameter_server.shards.Shards`.
    """

    def __init__(self, shares: dict[str, SampleShare], stuck_s: float, *, fixed: bool = False) -> None:
        self._shares = shares
        self._fixed = fixed
        self._agreement = Agreement()
        self._shards: Shards | None = None  # created when the first worker reports the number of epochs
        self._lock = threading.Condition()
        self.state = SharedState(self._lock)
        """The trained state."""
        self._connection_ids: dict[str, int] = {}
        self._in_flight = BatchesInFlight(stuck_s)
        self._reported: dict[str, float] = {}
        self._monitor: Monitor | None = None  # only if the script uses ``until``
        self._max_epochs = 0  # number of epochs in the script
        self._reports: dict[str, int] = {}  # by worker: number of reports of the monitored metric
        self._order_request: tuple[str, float] | None = None  # worker and time of the request
        self._order_patience_s = stuck_s  # maximum wait for the order
        # Workers that joined this or an earlier server, have not left, and do not know that training is over.
        self._uninformed: set[str] = set()
        self._kept: dict[str, torch.Tensor] = {}  # packed state of each worker's optimizer; the newest is last
        self._reasons: defaultdict[str, list[str]] = defaultdict(list)  # of failures, by worker, for messages

    # --- workers --------------------------------------------------------------------------------------------------

    def rejection_reason(
        self,
        worker: str,
        epochs: int,
        size: int,
        summed: int,
        dtype: torch.dtype,
        until: dict[str, Any] | None = None,
        description: Description | None = None,
    ) -> str | None:
        """Return why the server rejects a worker; ``None`` if the worker may join.

        ``size`` and ``summed`` are the lengths of the worker's state and of its first part, whose changes add up. The
        ``description`` of the first worker that may join applies to all workers.
        """
        with self._lock:
            shards = self._shards or Shards(self._shares, epochs, fixed=self._fixed)
            if not shards.is_scheduled(worker):
                return f"the schedule has no share for {worker}"
            if excess := self.state.memory_excess(worker, size, dtype):
                return excess
            if self._shards is None:
                self._monitor = Monitor(Converged(**until), epochs) if until else None
                self._shards, self._max_epochs = shards, epochs
            if shards.is_excluded(worker):
                excluded = f"{worker} has failed {MAX_FAILURES} times and is excluded from the rest of the job"
                return ": ".join([excluded, *(["; ".join(self._reasons[worker])] if self._reasons[worker] else [])])
            if epochs != self._max_epochs:
                return f"{worker} has {epochs} epochs, other workers {self._max_epochs}: run the same script"
            difference = self._agreement.difference(description or {})
            if difference := difference or self.state.difference(worker, size, summed, dtype):
                return difference
            self._agreement.add(worker, description or {})
            return None

    def has_excluded(self, worker: str) -> bool:
        """Return whether a worker is excluded after too many failures."""
        with self._lock:
            shards = self._shards
            return shards is not None and shards.is_scheduled(worker) and shards.is_excluded(worker)

    def join(self, worker: str, connection_id: int, batch_size: int | None = None) -> None:
        """Add a worker, which may have reconnected."""
        with self._lock:
            assert self._shards is not None
            if worker in self._connection_ids:
                self._remove_worker(worker, "it has reconnected", failed=True)
            self._connection_ids[worker] = connection_id
            self._reports[worker] = 0
            self.state.note_fetch(worker)
            self._shards.join(worker, batch_size)
            self._uninformed.add(worker)
            self._lock.notify_all()
            failures = self._shards.failures[worker]
            log(
                f"{worker} has joined: {self._count_workers()}"
                + (f" (failures so far: {failures})" if failures else "")
            )

    def disconnect(self, worker: str, connection_id: int, reason: str, *, failed: bool = True) -> None:
        """Remove a worker whose connection has ended; count a failure if ``failed``."""
        with self._lock:
            if self._connection_ids.get(worker) == connection_id:
                self._remove_worker(worker, reason, failed=failed)
                if not failed:
                    self._uninformed.discard(worker)

    def _remove_worker(self, worker: str, reason: str, *, failed: bool) -> None:
        assert self._shards is not None
        del self._connection_ids[worker]
        samples = self._shards.leave(worker, failed=failed)
        self._in_flight.drop(worker)
        if self._order_request is not None and self._order_request[0] == worker:
            self._order_request = None
        self._lock.notify_all()
        silent_s = self._in_flight.take_silent_s(worker)
        if failed:
            if silent_s is not None:
                reason = f"{reason}, after it had hung for {silent_s:.0f} s: frozen, or its machine is overloaded"
            self._reasons[worker].append(reason)
            count = self._shards.failures[worker]
            exclusion = ""
            if count >= MAX_FAILURES:
                exclusion = f", excluded from the rest of the job: {'; '.join(self._reasons[worker])}"
            log(f"{worker} is lost ({reason}): {samples} samples go to other workers, failure {count}{exclusion}")
        elif not self._shards.ended:
            log(f"{worker} has left: {self._count_workers()}")

    def _count_workers(self) -> str:
        number = len(self._connection_ids)
        return "1 worker" if number == 1 else f"{number} workers"

    def keep(self, worker: str, connection_id: int, packed: torch.Tensor) -> None:
        """Store the packed state of a worker's optimizer and other objects."""
        with self._lock:
            if self._connection_ids.get(worker) == connection_id:
                self._kept.pop(worker, None)
                self._kept[worker] = packed

    def kept_for(self, worker: str) -> torch.Tensor | None:
        """Return what was kept for a worker, else the newest state of any worker; ``None`` if nothing was kept."""
        with self._lock:
            newest = next(reversed(self._kept.values()), None)
            return self._kept.get(worker, newest)

    # --- batches --------------------------------------------------------------------------------------------------

    def next_message(self, worker: str, connection_id: int) -> dict[str, Any]:
        """Return the next message for a worker: a batch, a request for the sample order, or the end of training."""
        with self._lock:
            shards = self._shards
            assert shards is not None
            requested_s = time.monotonic()
            while self._connection_ids.get(worker) == connection_id:
                if shards.needs_order and self._order_request is None:
                    self._order_request = worker, time.monotonic()
                    return {"kind": "order", "epoch": shards.epochs_started}
                lease = shards.lease(worker)
                if lease is not None:
                    self._in_flight.add(lease.number, worker, time.monotonic())
                    fields: dict[str, Any] = {"number": lease.number, "epoch": lease.epoch}
                    fields |= {"indices": list(lease.indices), "waited_s": round(time.monotonic() - requested_s, 4)}
                    return {"kind": "lease", **fields, **self._progress_of(worker)}
                if shards.ended:
                    return {"kind": "over", **self._progress_of(worker)}
                # Never block a worker that has leases. A worker without leases waits briefly, then asks again.
                if shards.leased_to(worker) or time.monotonic() >= requested_s + _WAIT_S:
                    return {"kind": "nothing"}
                self._lock.wait(_WAIT_S)
            return {"kind": "rejected", "why": f"another process has joined as {worker}"}

    def expects_order(self, worker: str, connection_id: int) -> bool:
        """Return whether the server has requested the sample order from a worker."""
        with self._lock:
            request = self._order_request
            return self._connection_ids.get(worker) == connection_id and request is not None and request[0] == worker

    def start_epoch(self, worker: str, connection_id: int, order: Sequence[int]) -> None:
        """Start an epoch with the sample order that a worker has sent on request."""
        with self._lock:
            assert self._shards is not None
            if self.expects_order(worker, connection_id):
                self._order_request = None
                self._shards.start_epoch(order)
                self._lock.notify_all()

    def apply_change(
        self,
        worker: str,
        connection_id: int,
        number: int,
        version: int,
        update: torch.Tensor,
        reported: dict[str, float],
        reports: int = 0,
    ) -> bool | None:
        """Apply the update of a worker's batch; return whether the batch counts. A reassigned batch does not count.

        ``update`` covers only the server's range; other processes have received the other ranges. Return ``None`` if
        ``version`` belongs to an earlier layout: the worker has to send the update again. ``reports`` is the number of
        times that the worker has reported the monitored metric.
        """
        if not torch.isfinite(update).all():
            raise ValueError(NOT_FINITE)
        with self._lock:
            assert self._shards is not None
            self._in_flight.heard_of(worker)
            reported = metrics(reported, self._reported)
            if not self.state.fits(version, update):
                return None
            if self._connection_ids.get(worker) != connection_id or not self._shards.finish(worker, number):
                return False
            if not self.state.apply(worker, number, update):
                return False
            self._in_flight.finish(number, time.monotonic())
            self._reported.update(reported)
            if self._monitor is not None and reports > self._reports[worker]:
                self._reports[worker] = reports
                self._update_epochs(self._monitor, self._shards)
            self._lock.notify_all()
            return True

    def _update_epochs(self, monitor: Monitor, shards: Shards) -> None:
        """Update the number of epochs from a new report of the monitored metric."""
        metric, before = monitor.until.metric, shards.epochs
        if monitor.end_reason is not None:
            return
        monitor.add(shards.epochs_done, self._reported.get(metric, math.nan))
        shards.set_epochs(monitor.epochs)
        if monitor.end_reason is not None:
            log(f"training ends after {shards.epochs} epochs: {monitor.end_reason}")
        elif shards.epochs != before:
            log(f"forecast from {metric}: {shards.epochs} epochs")

    def stop(self) -> None:
        """End training in all workers, because a worker called ``stop_early``."""
        with self._lock:
            assert self._shards is not None
            self._shards.stop()
            self._lock.notify_all()

    def reassign_stuck(self) -> None:
        """Reassign stuck batches, and a stuck request for the order of samples."""
        now_s = time.monotonic()
        with self._lock:
            all_wait = self._shards is not None and self._shards.all_leased and len(self._connection_ids) > 1
            self._in_flight.name_awaited(now_s, all_wait=all_wait)
            if self._order_request is not None and now_s - self._order_request[1] > self._order_patience_s:
                log(f"{self._order_request[0]} has not sent the order of the samples: asking another worker")
                self._order_patience_s *= 2  # a late order is ignored: if it always takes so long, no epoch would start
                self._order_request = None
                self._lock.notify_all()
            for number, worker, held_s in self._in_flight.take_stuck(now_s):
                assert self._shards is not None
                log(f"{worker} has not returned a batch for {held_s:.0f} s: reassigning the batch")
                self._shards.revoke_lease(number)
                self._lock.notify_all()

    # --- status ---------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether every sample of every epoch is done."""
        with self._lock:
            return self._shards is not None and self._shards.ended

    @property
    def has_no_workers(self) -> bool:
        """Whether no worker is connected."""
        return not self._connection_ids

    @property
    def all_excluded(self) -> bool:
        """Whether every worker is excluded after too many failures."""
        with self._lock:
            return self._shards is not None and all(self._shards.is_excluded(name) for name in self._shares)

    @property
    def uninformed(self) -> list[str]:
        """The workers that have joined and do not know that training is over."""
        with self._lock:
            assert self._shards is not None
            return sorted(name for name in self._uninformed if not self._shards.is_excluded(name))

    def progress_of(self, worker: str) -> dict[str, int]:
        """Return a worker's batches done, its forecast total, the number of epochs, and the samples that are done.

        ``samples`` are the samples of all epochs that all workers have done, and ``size`` those of one epoch.
        """
        with self._lock:
            return self._progress_of(worker)

    def _progress_of(self, worker: str) -> dict[str, int]:
        assert self._shards is not None
        shards = self._shards
        own = {"done": shards.done[worker], "total": shards.forecast_batches(worker)}
        return {**own, "epochs": shards.epochs, "samples": shards.samples_done, "size": shards.size}

    def progress(self, event: str) -> Progress:
        """Return the progress, in samples of all epochs, with the workers' reports."""
        with self._lock:
            shards = self._shards or Shards(self._shares, 1)
            values: dict[str, float] = {**self._reported, "workers": len(shards.present)}
            values["failures"] = sum(shards.failures.values())
            if self.state.processes > 1:
                values["servers"] = self.state.processes
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
                may_end_early=self._monitor is not None,
                unit="samples",
                monotonic_s=time.monotonic(),
                wall_s=time.time(),
            )

    def content(self) -> dict[str, Any] | None:
        """Return the content of a checkpoint; ``None`` if there is no complete state."""
        with self._lock:
            if self._shards is None or (state := self.state.complete_snapshot()) is None:
                return None
            monitor = self._monitor
            monitored = {"until": monitor.until.to_dict(), "curve": monitor.points} if monitor is not None else None
            return {
                "state": state,
                "summed": self.state.summed,
                "shards": json.dumps(self._shards.state()),
                "epochs": self._max_epochs,
                "monitor": json.dumps(monitored),
                "agreement": json.dumps(self._agreement.state()),
                "uninformed": sorted(self._uninformed),
                "reasons": json.dumps(self._reasons),
                # Only the newest: the states of all workers would make checkpoints several times as large.
                "kept": dict(list(self._kept.items())[-1:]),
            }

    def restore(self, content: dict[str, Any]) -> None:
        """Resume from a checkpoint's ``content``."""
        self._max_epochs = content["epochs"]
        self._agreement = Agreement(json.loads(content.get("agreement", "{}")))
        self._shards = Shards(self._shares, self._max_epochs, fixed=self._fixed)
        self._shards.load_state(json.loads(content["shards"]))
        self._uninformed = self._shares.keys() & content.get("uninformed", ())
        self._reasons.update(json.loads(content.get("reasons", "{}")))
        self._kept = dict(content["kept"])
        monitored = json.loads(content.get("monitor", "null"))
        if monitored is not None:
            self._monitor = Monitor(Converged(**monitored["until"]), self._max_epochs)
            self._monitor.restore(monitored["curve"])
            self._shards.set_epochs(self._monitor.epochs)
        if self._shards.ended and not self._uninformed:
            self._uninformed = set(self._shares)  # workers whose code after the loop has failed need the state again
        self.state.set_initial_state(content["state"], content["summed"])
