"""The lifecycle of a training run, from the user's settings to a stored result, over all tries of its task.

``DeadlineTrainingOperator`` creates a :class:`Training` for each try. The live state passes the job (``container``),
the controller's state (``controller``) and the result (``result``) to the next try.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from paceline.contract import (
    CEILING,
    CONTROLLER,
    HISTORY,
    HISTORY_BEFORE,
    PACE,
    ControllerState,
    JobRecord,
    TrainingResult,
)
from paceline.control import GPU_QUANTUM, Controller, PastRun
from paceline.errors import (
    DeadlineInfeasibleError,
    DetachedError,
    InvalidInputError,
    JobLostError,
    PacelineError,
    ResizePendingError,
    TaskStoppedError,
    TrainingAbandonedError,
    TrainingFailedError,
    TrainingOverError,
    UnsuitableCodeError,
)
from paceline.run._copier import Copier
from paceline.run._earlier import EarlierJob
from paceline.run._handle import JobHandle
from paceline.run._handover import ControlElsewhereError, Handover, Leaves, Surroundings
from paceline.run._history import History
from paceline.run._loop import PaceLoop
from paceline.run._queue import Queue, WaitElsewhereError, WaitingJob, grant_in_force
from paceline.run._result import ResultStore
from paceline.run._states import Lifecycle
from paceline.run._stopping import StopCheck, Stopping
from paceline.run.clock import Clock, SystemClock
from paceline.run.host import Host
from paceline.run.settings import Settings
from paceline.runtime import SupportsTeams
from paceline.runtime.temporary import TemporaryFolder


class Training:
    """One try of a training run.

    Parameters
    ----------
    settings:
        The user's settings.
    host:
        The environment of the training run.
    on_drain:
        Treatment of the job when this process has to end but its task does not: ``"leave"`` lets the job continue with
        its allocation, ``"stop"`` stops it and keeps its checkpoint.
    clock:
        The clock of the control loop.
    waits_here:
        Whether this process waits for an arbiter's first grant. If not, :meth:`run` raises WaitElsewhereError.
    waited_since:
        The time from which the deadline is counted, if another process has waited for the first grant.
    leaves:
        Called after every control step, and with the status of a job that has ended; returns whether another process
        continues the control. :meth:`run` then raises ControlElsewhereError. Default: never.
    continues:
        Whether this process continues what another process of the same try has controlled: an ended or lost job is
        then that try's, and not started again.

    Attributes
    ----------
    record, past:
        The record of the controlled job, and the earlier run that its controller knows; ``None`` until known.
    """

    def __init__(
        self,
        settings: Settings,
        host: Host,
        *,
        on_drain: str = "leave",
        clock: Clock | None = None,
        waits_here: bool = True,
        waited_since: datetime | None = None,
        leaves: Leaves | None = None,
        continues: bool = False,
    ) -> None:
        self._settings, self._host = settings, host
        self._waits_here, self._waited_since = waits_here, waited_since
        self._leaves, self._continues = leaves, continues
        self._clock = clock or SystemClock()
        self._log = host.log
        self.stop_requested = threading.Event()
        self._handle = JobHandle(host, self.stop_requested)
        self._stopping = Stopping(self._handle, host, self.stop_requested, lease_s=settings.lease_s, on_drain=on_drain)
        self._store, self.call_engine = self._handle.store, self._handle.call_engine
        self._results = ResultStore(self._handle, host)
        self._lifecycle = Lifecycle()
        self._restarted = False  # this try has started a job that resumes from a checkpoint
        self._succeeded = False  # the job succeeded, so its output is kept
        self.record: JobRecord | None = None
        self.past: PastRun | None = None

    def run(self) -> TrainingResult:
        """Start or resume training; return once the result is stored and the job is removed.

        Raises
        ------
        InvalidInputError, DeadlineInfeasibleError, TrainingOverError, UnsuitableCodeError
            Another try cannot succeed; the job is removed.
        TrainingAbandonedError
            Another try cannot succeed unless other tasks are cleared; the job is stopped and keeps its checkpoint.
        DetachedError
            This process has to end; the next process takes over the job.
        WaitElsewhereError, ControlElsewhereError
            Another process is to wait for the first devices, or to continue the control.
        TaskStoppedError
            The task is over; the job is removed.
        Exception
            Any other error. The job is kept for the next try. After the last try, the job is removed if it failed, and
            kept otherwise.
        """
        handle = self._handle
        try:
            if self._continues:
                handle.continue_here()
            with handle.noting_errors():
                return self._results.find() or self._train()
        except (TaskStoppedError, KeyboardInterrupt) as error:
            raise self._stopping.carry_out() from error
        except DetachedError:
            raise
        except (InvalidInputError, DeadlineInfeasibleError, TrainingOverError, UnsuitableCodeError):
            self._keep_or_discard()
            raise
        except TrainingAbandonedError as error:
            if self._host.task_status() == "over":  # a user has ended this task together with the others
                raise self._stopping.carry_out() from error
            if handle.job is not None:
                handle.stop()
                self._log.error(
                    "Job %s was stopped and keeps its checkpoint: clear the tasks to continue", self._job_id
                )
            raise
        except Exception as error:
            if self.stop_requested.is_set():  # the stop caused the error
                raise self._stopping.carry_out() from None
            if self._has_tries_left():
                handle.publish_end("detached", "airflow")
            elif self._succeeded or isinstance(error, (TrainingFailedError, JobLostError)):
                self._keep_or_discard(is_lost=isinstance(error, JobLostError))
            elif handle.job is not None:  # the job did not cause the error
                handle.stop()
                self._log.error("Job %s was stopped and keeps its checkpoint: clear the task to continue", self._job_id)
            raise
        except BaseException:  # usually a task timeout: stop the job, which may hang
            if self._has_tries_left():
                handle.stop()
            else:
                self._keep_or_discard()
            raise
        finally:
            self._stopping.finished.set()
            handle.close()
            if not self.stop_requested.is_set():
                self._host.wait_for_callbacks()

    def steps(self) -> Generator[float, float, None]:
        """Control the job, for another process that will find the same and collects the output or handles the error.

        Yields and receives as :meth:`PaceLoop.steps`. The first step finds the job.

        Raises ControlElsewhereError when that process is to continue, TaskStoppedError or DetachedError after
        ``stop_requested`` is set, and any error of the control. The job is as :meth:`run` would find it, unless
        :meth:`request_stop` was called and the task is over.
        """
        try:
            loop = self._begin()
            assert self.record is not None  # set with the loop
            with self._copying_checkpoints(self.record):
                yield from loop.steps()
            raise ControlElsewhereError("the job has ended")
        except TaskStoppedError as error:
            if self._stopping.was_requested:
                raise self._stopping.carry_out() from error
            raise
        finally:
            self._stopping.finished.set()
            self._handle.close()

    @property
    def has_job(self) -> bool:
        """Whether this try has started a job, or has found that of an earlier process."""
        return self._handle.job is not None

    def request_stop(self) -> None:
        """Request that :meth:`run` ends soon. May be called from a signal handler in the thread of :meth:`run`."""
        self._stopping.request()

    def can_continue(self) -> bool:
        """Return whether an earlier try has stored the result, or has left a job that this try would take over."""
        stored = self._results.read()
        if stored is not None:
            return stored.is_for(self._host.try_number, self._host.max_tries)
        try:
            return EarlierJob(self._handle, self._host).can_be_taken_over
        finally:
            self._handle.close()

    def end(self) -> PacelineError:
        """Carry out a requested stop, also if :meth:`control` has not found the job; return the error that says how.

        The job may belong to the next try meanwhile. Raises RuntimeUnavailableError if the engine does not respond.
        """
        try:
            if self._handle.job is None:
                record = self._handle.find()
                if self._handle.job is not None and not self._handle.is_of_this_try(record):
                    return DetachedError("Another try of the task controls the job")
            return self._stopping.carry_out()
        finally:
            self._handle.close()

    def discard(self) -> None:
        """Remove the job of this or an earlier try, because no try will resume it."""
        if self._handle.job is None:
            self._handle.find()
        self._handle.discard()

    # --- from the start to the result -----------------------------------------------------------------------------

    def _train(self) -> TrainingResult:
        loop = self._begin()
        record = self.record
        assert record is not None  # set with the loop
        with self._copying_checkpoints(record):
            outcome = loop.run()
        self._succeeded = True
        return self._results.save(outcome, record)

    def _copying_checkpoints(self, record: JobRecord) -> AbstractContextManager[object]:
        job, copies = self._handle.job, self._host.checkpoint_copies()
        assert job is not None  # set with the loop
        about = {"code": record.code, "max_tries": self._host.max_tries}  # what ``copied_checkpoint`` reads
        if copies is None:
            return nullcontext()
        return Copier(job, copies, about, self._log, self.stop_requested, self._host.copy_turn())

    def _begin(self) -> PaceLoop:
        """Start the job, or find that of an earlier process; return its control loop."""
        past = self._host.past_run()
        earlier = EarlierJob(self._handle, self._host, self._settings.on_change)
        if self._continues:
            if self._handle.job is None:
                raise JobLostError("the job no longer exists")
            if earlier.record is None and self._leaves is not None:  # perhaps another try is starting it
                raise JobLostError("the job has no record of its start")
            if earlier.record is not None and not self._handle.is_of_this_try(earlier.record):
                raise DetachedError("Another try of the task controls the job")
        else:
            earlier.discard_if_outdated()
        takes_over = self._continues or earlier.can_be_taken_over
        record, controller, state = (self._take_over if takes_over else self._start)(earlier, past)
        # The stored state of a preempted job has 0 devices, and that of a restarted job has those of its training: use
        # the job's initial allocation.
        held = state.run.allocated_devices if state is not None and takes_over else 0.0
        held = min(held or record.devices, controller.limits.max_devices)
        return self._make_loop(record, controller, state, held, past)

    def _take_over(
        self, earlier: EarlierJob, past: PastRun | None
    ) -> tuple[JobRecord, Controller, ControllerState | None]:
        """Take over the job of an earlier try, which is running or has completed its training."""
        handle, record = self._handle, earlier.record
        runtime, job = handle.runtime, handle.job
        assert runtime is not None  # set with the job
        assert job is not None  # the caller has checked that it can be taken over
        if not self._continues:
            earlier.log_takeover()
        if self.stop_requested.is_set():  # before this process becomes the job's owner
            raise TaskStoppedError("the task was stopped")
        origin = record.origin if record is not None else self._host.origin(handle.earlier_origin)
        self._keep_clock(origin)
        controller, state = self._make_controller(origin, past, resumes=True)
        if record is None:  # the earlier process died between the start of the job and the record of its start
            devices = controller.limits.quantize(controller.start(self._seconds_after(origin)), None)
            if earlier.status is not None and earlier.status.state == "running":
                try:
                    self.call_engine(lambda: job.resize(devices))
                except ResizePendingError as pending:
                    devices = pending.devices
            record = JobRecord(runtime=runtime.name, id=job.id, origin=origin, devices=devices)
        return self._save_record(record), controller, state

    def _save_record(self, record: JobRecord) -> JobRecord:
        return self._handle.save_record(record.model_copy(update={"deferred": self._leaves is not None}))

    def _capacity(self) -> float:
        """Return the cores that the job may have, on several machines if whole devices may be in several places."""
        runtime, settings = self._handle.runtime, self._settings
        assert runtime is not None  # set by _train
        most, alone = settings.max_devices, getattr(runtime, "scatters_above", None)
        if most is not None and isinstance(alone, int) and most > alone and settings.quantum >= GPU_QUANTUM:
            return cast(SupportsTeams, runtime).team_capacity()
        return runtime.capacity()

    def _make_controller(
        self, origin: datetime, past: PastRun | None, *, resumes: bool
    ) -> tuple[Controller, ControllerState | None]:
        """Return this try's controller, and the stored state that it resumes from."""
        assert self._handle.runtime is not None  # set by _train
        settings = self._settings
        limits = settings.limits(self.call_engine(self._capacity), self._log)
        deadline_s = settings.deadline_in_force_s(self._store, origin, self._seconds_after(origin), self._log)
        stored = ControllerState.read(self._store.get(CONTROLLER)) if resumes else None
        tails = self._host.past_tails(self._handle.runtime.name) if past is None else ()
        controller = settings.make_controller(limits, deadline_s, past, tails)
        if stored is not None and stored.kind != type(controller).__name__:
            controller.set_start(stored.run.began_s)
        elif stored is not None:
            try:
                controller.restore(stored.controller)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                self._log.warning("The stored controller state is invalid: %r", error)
                controller = settings.make_controller(limits, deadline_s, past, tails)
                controller.set_start(stored.run.began_s)
        return controller, stored

    def _start(self, earlier: EarlierJob, past: PastRun | None) -> tuple[JobRecord, Controller, ControllerState | None]:
        """Start the job, or continue the ended or lost job of an earlier try from its checkpoint."""
        settings, store, handle = self._settings, self._store, self._handle
        is_new = handle.job is None
        if is_new:
            handle.runtime = self._host.runtime()
        runtime = handle.runtime
        assert runtime is not None  # set with the job, or above
        origin = self._waited_since or self._host.origin(handle.earlier_origin)
        self._keep_clock(origin)
        controller, state = self._make_controller(origin, past, resumes=False)
        if is_new and handle.earlier_origin is None:
            self._check_deadline_not_passed(controller.deadline_s, origin)
        granted = self._wait_for_devices(controller, origin, past) if settings.shared else None
        devices = controller.limits.quantize(controller.start(self._seconds_after(origin)), granted)
        with TemporaryFolder() as scratch, TemporaryFolder() as folder:
            copied = earlier.copied_checkpoint(folder) if is_new else None
            low, high = controller.limits.min_devices, controller.limits.max_devices
            spec = self._host.spec(scratch, devices)
            whole = controller.limits.quantum >= GPU_QUANTUM and not controller.limits.shares_gpus
            spec = replace(spec, checkpoint=copied, min_devices=low, max_devices=high, whole_devices=whole)
            runtime.check(spec)
            started_s = self._seconds_after(origin)
            job = handle.attach(runtime.start(spec) if is_new else earlier.restart(runtime, spec))
        self._restarted = not is_new or copied is not None
        if not self._restarted:
            if (before := store.get(HISTORY)) is not None:
                store.set(HISTORY_BEFORE, before)
            for key in (HISTORY, CONTROLLER) if settings.shared else (HISTORY, CONTROLLER, PACE):
                store.delete(key)
        else:
            controller, state = self._make_controller(origin, past, resumes=True)
        due = "none" if math.isinf(controller.deadline_s) else f"{controller.deadline_s:.1f} s after {origin}"
        self._log.info("Training is running as %s job %s, deadline: %s", runtime.name, job.id, due)
        record = JobRecord(
            runtime=runtime.name,
            id=job.id,
            origin=origin,
            started_at=origin + timedelta(seconds=started_s),
            devices=devices,
            code=earlier.code,
        )
        return self._save_record(record), controller, state

    def _check_deadline_not_passed(self, deadline_s: float, origin: datetime) -> None:
        now_s, at, choice = self._seconds_after(origin), self._settings.deadline.at, self._settings.on_infeasible
        if deadline_s > now_s:
            return
        message = f"deadline: {deadline_s:.1f} s had passed before training started, at {now_s:.1f} s"
        if at is not None and at <= origin:  # in a backfill, or by mistake
            message = (
                f"deadline: got {at.isoformat()}, expected a time after the start of the run, {origin.isoformat()}"
            )
        if choice == "fail":
            raise DeadlineInfeasibleError(message)
        self._log.warning("%s. Training starts anyway, because on_infeasible is %r", message, choice)

    def _wait_for_devices(self, controller: Controller, origin: datetime, past: PastRun | None) -> float:
        if self._waited_since is None:
            # No job is running. The arbiter may have granted the devices of an earlier job to other jobs.
            self._store.delete(CEILING)
        settings, pool = self._settings, self._host.pool
        queue = Queue(
            controller, past, origin, on_infeasible=settings.on_infeasible, pool=pool, clock=self._clock, log=self._log
        )
        self._lifecycle.enter("waiting", by="task")
        if self._waits_here:
            queue.wait(self._store, self.stop_requested)
        else:
            queue.exchange(self._store)
        if queue.granted is None:
            raise WaitElsewhereError(WaitingJob(settings, controller.limits, controller.deadline_s, past, origin, pool))
        self._lifecycle.enter("starting", by="arbiter")
        return queue.granted.devices

    def _make_loop(
        self,
        record: JobRecord,
        controller: Controller,
        state: ControllerState | None,
        allocated_devices: float,
        past: PastRun | None,
    ) -> PaceLoop:
        handle, store = self._handle, self._store
        self.record, self.past, job = record, past, handle.job
        if job is None:
            raise JobLostError(f"the job {record.id} no longer exists")
        team = self._host.team(job)
        if team is not None:  # a reattached team knows only the devices in use, not its allocation
            self.call_engine(lambda: team.resume(allocated_devices))
        shared = grant_in_force(store, allocated_devices) if self._settings.shared else None
        exchange = handle.exchange = self._host.exchange(self._log_store_failure)
        handle.loop = loop = PaceLoop(
            job,
            controller,
            exchange,
            Handover(
                origin=record.origin,
                allocated_devices=allocated_devices,
                job_started_s=(record.started_at - record.origin).total_seconds() if record.started_at else None,
                restarted=self._restarted,
                lifecycle=self._lifecycle,
                history=History(store.get(HISTORY)),
                totals=state.run if state else None,
                past=past,
                shared=shared,
            ),
            self._settings,
            Surroundings(
                clock=self._clock,
                log=self._log,
                stopped=StopCheck(
                    lambda: self.stop_requested.is_set() or exchange.disconnected,
                    handle.is_owner,
                    lambda: exchange.failing,
                ),
                check_need=self._host.check_need,
                on_sample=self._host.on_sample,
                mask=self._host.mask,
                leaves=self._leaves,
            ),
            team=team,
        )
        return loop

    def _keep_or_discard(self, *, is_lost: bool = False) -> None:
        """Remove the job after the last try, unless a cleared task can continue.

        It can collect the output of a successful job, and train from the copied checkpoint of a lost one.
        """
        if not self._succeeded:
            self._handle.discard(keep_copies=is_lost)
            copies = self._host.checkpoint_copies() if is_lost else None
            if copies is not None:
                self._log.error("Copies of the checkpoint are kept in %s: clear the task to continue", copies.place)
            return
        self._log.error(
            "Job %s has completed its training and is kept: clear the task to collect its output again", self._job_id
        )

    @property
    def _job_id(self) -> str | None:
        return self._handle.job.id if self._handle.job is not None else None

    def _keep_clock(self, origin: datetime) -> None:
        if isinstance(self._clock, SystemClock):
            self._clock.keep(self._store, origin)

    def _seconds_after(self, origin: datetime) -> float:
        return self._clock.now() - origin.timestamp()

    def _has_tries_left(self) -> bool:
        return self._host.try_number <= self._host.max_tries

    def _log_store_failure(self, error: Exception | None) -> None:
        if error is None:
            self._log.info("The task state store is responding again")
        else:
            self._log.warning("The task state store is not responding: control continues without it. %s", error)
