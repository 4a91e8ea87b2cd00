"""One life of a training, from the wish of a user to a result that is safe. Each try of a task lives a part of it.

``DeadlineTrainingOperator`` makes a :class:`Training` for each try. What is to outlive the try is in the live state:
``container`` says which job trains, ``controller`` how far control was, ``result`` what came out.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from paceline.contract import (
    CEILING,
    CONTROLLER,
    HISTORY,
    PACE,
    RESULT,
    ControllerState,
    JobRecord,
    Outcome,
    PaceSample,
    StoredResult,
    TrainingResult,
)
from paceline.control import Controller, PastRun
from paceline.errors import (
    AskedToEndError,
    DeadlineInfeasibleError,
    DetachedError,
    InvalidInputError,
    JobLostError,
    PacelineError,
    RuntimeUnavailableError,
    TrainingFailedError,
)
from paceline.run.clock import Clock, SystemClock
from paceline.run.handle import JobHandle
from paceline.run.history import History
from paceline.run.host import Host
from paceline.run.live import Exchange
from paceline.run.loop import PaceLoop
from paceline.run.queue import Queue, grant_in_force
from paceline.run.settings import Settings
from paceline.run.states import Course
from paceline.runtime.base import Job, JobStatus

_KILL_GRACE_S = 1.0  # Airflow ends a task 5 s after it was asked to go
_MAIN_HAS_S = 2.5  # of them; then the main thread hangs in a call, and the end is seen to from another one
_SUSPENDED_S = 10.0  # whoever has not taken a step for so long may have been given up: the job may be another's


class Training:
    """One try's part of a training's life.

    Parameters
    ----------
    settings:
        What the user wants.
    host:
        Whoever runs it.
    on_drain:
        What becomes of the job when this process has to go and its task has not: ``"leave"`` lets it train on with
        what it has, ``"stop"`` ends it with its checkpoint.
    clock:
        The time.
    """

    def __init__(self, settings: Settings, host: Host, *, on_drain: str = "leave", clock: Clock | None = None) -> None:
        self._settings, self._host, self._on_drain = settings, host, on_drain
        self._clock = clock or SystemClock()
        self._log = host.log
        self.asked_to_end = threading.Event()
        self._handle = JobHandle(host, self.asked_to_end)
        self._store, self.patiently = self._handle.store, self._handle.patiently
        self._course = Course()
        self._ending = threading.Lock()
        self._ended: tuple[Job | None, PacelineError] | None = None  # what the end that was asked for has come to
        self._is_done = False  # the job has ended well, and what it made is worth keeping
        self._over = threading.Event()
        self._was_asked = False

    def live(self) -> TrainingResult:
        """Train, or go on where an earlier try has left it; returns once the result is safe and the job removed.

        Raises
        ------
        InvalidInputError, DeadlineInfeasibleError
            Another try would find the same: the job is removed.
        DetachedError
            This process has to go; the next one takes up the job.
        AskedToEndError
            The task is over for good, and the job removed.
        Exception
            Anything else. The job is there for the next try; after the last one it is removed, unless it has trained
            to its end.
        """
        handle = self._handle
        try:
            return self._known_result() or self._train()
        except (AskedToEndError, KeyboardInterrupt) as error:
            raise self._end() from error
        except DetachedError:
            raise
        except (InvalidInputError, DeadlineInfeasibleError):
            self._keep_or_discard()
            raise
        except Exception as error:
            if self.asked_to_end.is_set():  # what this thread was at has failed by that
                raise self._end() from None
            if self._tries_are_left():
                handle.say("detached", "airflow")
            elif self._is_done or isinstance(error, (TrainingFailedError, JobLostError)):
                self._keep_or_discard()
            else:  # nothing that the job has done
                handle.stop()
                self._log.error("Job %s is stopped and kept with its checkpoint: clear the task to go on", self._job_id)
            raise
        except BaseException:  # a time limit of the task, above all: what hangs is not to hang on
            if self._tries_are_left():
                handle.stop()
            else:
                self._keep_or_discard()
            raise
        finally:
            self._over.set()
            handle.close()
            if not self.asked_to_end.is_set():
                self._host.wait_for_callbacks()

    def ask_to_end(self) -> None:
        """End soon. May be called from a signal handler, which may have stopped this object's own thread anywhere."""
        if self._was_asked or self._over.is_set():
            return
        self._was_asked = True
        # Nothing that takes a lock, as an Event or a log does: the thread that was stopped may hold that very lock.
        threading.Thread(target=self._see_to_the_end, name="paceline-end", daemon=True).start()

    def give_up(self) -> None:
        """Remove what this try or an earlier one has left: nobody will come back to it."""
        if self._handle.job is None:
            self._handle.find()
        self._handle.discard()

    # --- the way to a result --------------------------------------------------------------------------------------

    def _known_result(self) -> TrainingResult | None:
        """The result that an earlier try has stored and did not live to return."""
        stored = StoredResult.read(self._store.get(RESULT))
        if stored is None:
            return None
        if stored.is_for(self._host.try_number, self._host.max_tries):
            self._log.info("An earlier try has trained to the end and stored its result: nothing is left to do")
            self._handle.tidy()
            return stored.result
        if self._handle.find() is not None:  # the job that made it was to be removed; now another training is wanted
            if not self._handle.discard():
                raise RuntimeUnavailableError("the job of the training before this one could not be removed")
            self._handle.job = None
        self._store.delete(RESULT)
        return None

    def _train(self) -> TrainingResult:
        handle = self._handle
        past = self._host.past_run()
        earlier = handle.find()
        status = None if handle.job is None else self.patiently(handle.job.status)
        if handle.runtime is None:
            handle.runtime = self._host.runtime(None)
        if earlier is not None and status is not None and self._goes_on(earlier, status):
            self._log.info("Job %s of an earlier try is %s: taking it up", earlier.id, status.state)
            record = handle.record(earlier)
            controller, state = self._controller(record.origin, past, resumes=True)
            # Of one that stood still when it was controlled last, what it was started on.
            held = (state.run.held_devices if state else 0.0) or record.devices
        else:
            record, controller, state = self._begin(earlier, past)
            held = record.devices
        return self._make_safe(self._steer(record, controller, state, held, past), record)

    def _goes_on(self, earlier: JobRecord, status: JobStatus) -> bool:
        """Whether the job of an earlier try runs, or has ended well by itself: not because it was told to stop."""
        if status.state == "running":
            return True
        sample = PaceSample.read(self._store.get(PACE))
        was_paused = sample is not None and sample.state == "paused"
        return status.exit_code == 0 and not earlier.stopped and not was_paused

    def _controller(
        self, origin: datetime, past: PastRun | None, *, resumes: bool
    ) -> tuple[Controller, ControllerState | None]:
        """The controller of this try, from the first allocation to the last step, and what it goes on from."""
        assert self._handle.runtime is not None  # it has been chosen by now
        settings = self._settings
        limits = settings.limits(self.patiently(self._handle.runtime.capacity), self._log)
        deadline_s = settings.deadline_in_force(self._store, self._log).seconds_after(origin)
        stored = ControllerState.read(self._store.get(CONTROLLER)) if resumes else None
        made = settings.make_controller(limits, deadline_s, past)
        if stored is not None and stored.kind != type(made).__name__:
            made.begins(stored.run.began_s)
        elif stored is not None:
            try:
                made.restore(stored.controller)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                self._log.warning("What the controller of the last try has stored cannot be read: %r", error)
                made = settings.make_controller(limits, deadline_s, past)
                made.begins(stored.run.began_s)
        return made, stored

    def _begin(
        self, earlier: JobRecord | None, past: PastRun | None
    ) -> tuple[JobRecord, Controller, ControllerState | None]:
        """Start the job, or start it again from its checkpoint when an earlier try left it behind."""
        settings, store, handle = self._settings, self._store, self._handle
        runtime = handle.runtime
        assert runtime is not None  # it has been chosen by now
        origin = self._host.origin(earlier.origin if earlier else None)
        controller, state = self._controller(origin, past, resumes=False)
        if earlier is None:
            self._heed_a_deadline_that_has_passed(controller.deadline_s, self._seconds_after(origin))
        most = self._wait_for_devices(controller, origin, past) if settings.shared else None
        devices = controller.limits.quantize(controller.start(self._seconds_after(origin)), most)
        with tempfile.TemporaryDirectory(prefix="paceline-") as scratch:
            spec = self._host.spec(Path(scratch), devices)
            runtime.check(spec)
            job = handle.have(runtime.start(spec))
        if earlier is not None and earlier.id == job.id:
            controller, state = self._controller(origin, past, resumes=True)
        else:
            for key in (HISTORY, CONTROLLER) if settings.shared else (HISTORY, CONTROLLER, PACE):
                store.delete(key)
        self.patiently(lambda: job.resize(devices))  # it may have been started before, on others
        if job.status().state in ("exited", "gone"):  # gone: a machine was restarted
            self._log.info("Starting the job of an earlier try again: it resumes from its checkpoint")
            self.patiently(job.restart)
        due = "soon" if math.isinf(controller.deadline_s) else f"{controller.deadline_s:.1f} s after {origin}"
        self._log.info("Training runs as %s job %s, to be done %s", runtime.name, job.id, due)
        record = JobRecord(runtime=runtime.name, id=job.id, origin=origin, devices=devices)
        return handle.record(record), controller, state

    def _heed_a_deadline_that_has_passed(self, deadline_s: float, now_s: float) -> None:
        if deadline_s > now_s:
            return
        message = f"deadline: {deadline_s:.1f} s had passed when the training was to begin, at {now_s:.1f} s"
        if self._settings.on_infeasible == "fail":
            raise DeadlineInfeasibleError(message)
        self._log.warning("%s. It trains all the same, as on_infeasible is %r", message, self._settings.on_infeasible)

    def _wait_for_devices(self, controller: Controller, origin: datetime, past: PastRun | None) -> float:
        # No job runs now. What one before this was given may have been given to others since.
        self._store.delete(CEILING)
        queue = Queue(
            self._host.store,
            controller,
            past.remaining() if past else None,
            origin,
            on_infeasible=self._settings.on_infeasible,
            pool=self._host.pool,
            asked_to_end=self.asked_to_end,
            log=self._log,
        )
        self._course.becomes("waiting", by="task")
        devices = queue.wait().devices
        self._course.becomes("starting", by="arbiter")
        return devices

    def _steer(
        self,
        record: JobRecord,
        controller: Controller,
        state: ControllerState | None,
        held: float,
        past: PastRun | None,
    ) -> Outcome:
        """Control the job to its end."""
        handle, store = self._handle, self._store
        job = handle.job
        if job is None:
            raise JobLostError(f"the job {record.id} is not there any more")
        team = self._host.team(job)
        if team is not None:  # one that was found again knows only what it used
            self.patiently(lambda: team.resume(held))
        history, shared = History(store.get(HISTORY)), grant_in_force(store, held) if self._settings.shared else None
        exchange = handle.exchange = Exchange(self._host.store, on_trouble=self._store_trouble)
        handle.loop = PaceLoop(
            job,
            controller,
            exchange,
            course=self._course,
            origin=record.origin,
            held_devices=held,
            on_infeasible=self._settings.on_infeasible,
            history=history,
            totals=state.run if state else None,
            log=self._log,
            clock=self._clock,
            stopped=_Watch(lambda: self.asked_to_end.is_set() or exchange.cut_off, handle.is_mine),
            past=past,
            on_sample=self._host.take,
            team=team,
            shared=shared,
        )
        outcome = handle.loop.run()
        self._is_done = True
        handle.close_exchange()  # nothing of it is to be written after what follows
        return outcome

    def _make_safe(self, outcome: Outcome, record: JobRecord) -> TrainingResult:
        """Collect, store, and only then remove. Each step may be repeated by the next try."""
        assert self._handle.job is not None  # it has just ended
        if not self._handle.is_mine():
            raise DetachedError("Another process has taken up the job: this one lets go of it")
        model = self._host.collect(self._handle.job)
        result = TrainingResult(**outcome.model_dump(), model=model, runtime=record.runtime, origin=record.origin)
        stored = StoredResult(try_number=self._host.try_number, max_tries=self._host.max_tries, result=result)
        self._store.set(RESULT, stored.to_json())
        self._handle.tidy()
        if outcome.learned is not None:
            self._host.save_measurements(outcome.learned)
        return result

    # --- other ends -----------------------------------------------------------------------------------------------

    def _end(self) -> PacelineError:
        """The end that was asked for; returns the error that says what it has come to."""
        with self._ending:
            job = self._handle.job
            if self._ended is None or self._ended[0] is not job:  # else it was being started then
                self._ended = (job, self._end_as_the_task_stands())
        return self._ended[1]

    def _see_to_the_end(self) -> None:
        self.asked_to_end.set()
        self._log.info("Asked to end")
        if not self._over.wait(_MAIN_HAS_S):
            self._end()

    def _end_as_the_task_stands(self) -> PacelineError:
        handle = self._handle
        if self._host.standing() == "over":
            gone = handle.discard(_KILL_GRACE_S)
            return AskedToEndError(f"The task is over: its job {'is removed' if gone else 'could not be removed'}")
        if handle.job is None:
            return DetachedError("This process has to go, and its task has not: the next one begins")
        if not handle.is_mine():
            return DetachedError("Another process has taken up the job: this one lets go of it")
        if self._on_drain == "stop":
            handle.stop()
            return DetachedError("This process has to go: its job is stopped, the next one resumes the checkpoint")
        handle.say("detached", "airflow")
        return DetachedError("This process has to go: its job trains on, the next one takes it up")

    def _keep_or_discard(self) -> None:
        """No further try will come. What has trained to its end is kept: a user who clears the task collects it."""
        if not self._is_done:
            self._handle.discard()
            return
        self._log.error(
            "Job %s has trained to its end and is kept: clear the task to collect its output again", self._job_id
        )

    @property
    def _job_id(self) -> str | None:
        return self._handle.job.id if self._handle.job is not None else None

    def _seconds_after(self, origin: datetime) -> float:
        return self._clock.now() - origin.timestamp()

    def _tries_are_left(self) -> bool:
        return self._host.try_number <= self._host.max_tries

    def _store_trouble(self, error: Exception | None) -> None:
        if error is None:
            self._log.info("The task state store answers again")
        else:
            self._log.warning("The task state store does not answer: control goes on without it. %s", error)


class _Watch:
    """Asked at every step whether to stop; who has not asked for long makes sure that the job is still its own."""

    def __init__(self, asked: Callable[[], bool], is_mine: Callable[[], bool]) -> None:
        self._asked, self._is_mine = asked, is_mine
        self._last_s = time.monotonic()

    def __call__(self) -> bool:
        last_s, self._last_s = self._last_s, time.monotonic()
        return self._asked() or (self._last_s - last_s > _SUSPENDED_S and not self._is_mine())
