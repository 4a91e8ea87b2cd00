"""The progress of a job: its reports, the total that they announce, its end, and where its other lines go."""

from __future__ import annotations

from collections.abc import Callable

from paceline.control import TailForecast
from paceline.run._engine_clock import end_of_job_s
from paceline.run._handover import Handover
from paceline.run._journal import Journal
from paceline.run._pauses import Pauses
from paceline.run.outcome import describe_tail
from paceline.run.output import Output
from paceline.run.reading import ProgressReader
from paceline.runtime import Job
from paceline.train.progress import Progress

_NOTABLE_CHANGE = 0.05  # log only larger relative changes of the number of batches


class JobProgress:
    """Reads a job's lines at every step, and records what they say of the whole run.

    Parameters
    ----------
    job:
        The job, whose lines are read.
    journal:
        Receives the events, and its log the job's other lines.
    handover:
        What earlier processes have read.
    on_resume:
        Called with the time, in seconds, if the program starts again, for example from its checkpoint.

    Attributes
    ----------
    reader, output:
        What has been read, and the lines that are not progress.
    total:
        Number of batches of the job; ``None`` before the first report.
    """

    def __init__(self, job: Job, journal: Journal, handover: Handover, on_resume: Callable[[float], None]) -> None:
        self._job, self._journal, self._on_resume = job, journal, on_resume
        self.output = Output(journal.log)
        past, reported = handover.past, handover.totals.reported if handover.totals else None
        pauses = Pauses(past.pause_s, from_same_task=not past.related) if past is not None else Pauses()
        self.reader = ProgressReader(self.output.add, self._warn_of_malformed, pauses, reported)
        self.total = reported.total if reported else None
        self._logged_total = self.total or 0
        self._tail_source = ""
        self._origin_s = handover.origin.timestamp()

    def read(self, now_s: float) -> list[Progress]:
        """Read the new lines; return the new reports of a position, oldest first."""
        reports = [report for report in self.reader.feed(self._job.read_lines(), now_s) if report.event != "report"]
        if reports:
            before, self.total = self.total, reports[-1].total
            if before is None:
                self._logged_total = self.total
            elif self.total != before:
                self._log_total(now_s, self.total, reports[-1].unit)
            elif (start := next((one for one in reversed(reports) if one.event == "start"), None)) is not None:
                self._on_resume(now_s)
                if start.percent > 0:
                    self._journal.event(now_s, "resumed", "Training resumes at %.1f %%", start.percent)
                else:
                    self._journal.log.info("Training starts from the beginning: there was no checkpoint")
        return reports

    @property
    def newest(self) -> Progress | None:
        """The newest report."""
        return self.reader.newest

    @property
    def is_trained(self) -> bool:
        """Whether the last batch is done."""
        return self.reader.trained_s is not None

    @property
    def may_end_early(self) -> bool:
        """Whether a metric may end training before all batches are done."""
        return self.newest is not None and self.newest.may_end_early

    def log_tail(self, tail: TailForecast) -> None:
        """Log the forecast of what comes after the last batch, if it comes from another source than before."""
        if tail.source != self._tail_source:
            self._tail_source = tail.source
            self._journal.log.info(describe_tail(tail))

    def ended_s(self, engine_s: float, began_s: float, now_s: float) -> float:
        """Return the end of a job that began at ``began_s``, from ``engine_s``: its end on the engine's clock."""
        reader, origin_s = self.reader, self._origin_s
        offset_s = None if reader.clock_offset_s is None else reader.clock_offset_s + origin_s
        return end_of_job_s(engine_s - origin_s, offset_s, reader.trained_s or began_s, now_s)

    def _log_total(self, now_s: float, total: int, unit: str) -> None:
        # In distributed training, a worker's shard changes slightly at every epoch: log only larger changes.
        if abs(total - self._logged_total) > _NOTABLE_CHANGE * self._logged_total:
            self._journal.event(now_s, "total", "The job now has %d %s in total", total, unit)
            self._logged_total = total

    def _warn_of_malformed(self, line: str, reason: str) -> None:
        self.output.warn(f"Progress line skipped ({reason}): {line:.200s}")
