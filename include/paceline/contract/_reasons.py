"""The reasons of scheduling decisions: constants to count by, each with its sentence.

Policies and the arbiter give them; ceilings store them; logs and pages show their sentences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, unique

from paceline.contract._units import Unit

_WORD = re.compile(r"\bdevices\b(?![^{}]*\})")  # not the names of values, which are in braces
_ONE = re.compile(r"(?<![\d.,])(1 (?:core|device|GPU))s\b")
_OTHER = "other"  # the constant of a reason that was stored as a sentence only


@unique
class ReasonKind(Enum):
    """The constants of Paceline's own reasons, and the sentence of each with its values in braces."""

    # Plans with deadlines
    MEETS_DEADLINE = "smallest allocation that meets its deadline"
    HAS_SPARE_DEVICES = "more devices than its plan needs now to meet its deadline, because spare devices are available"
    CAN_WAIT = "can wait and still meet its deadline"
    PROMISES_EXTENDED = "smallest allocation with which no promised job is more than {late_pct:.0f} % late"
    UNCERTAIN = (
        "meets its deadline by the newest estimate, but not surely enough for a promise; {state} beside promised jobs"
    )
    ADMITTED = "admitted: meets its deadline"
    REJECTED = "rejected: its deadline does not fit alongside the deadlines of admitted jobs"
    OVERRUN = "can no longer meet its deadline; {state} spare devices"
    INFEASIBLE = "by the newest estimate, misses its deadline even alone in the pool; {state} spare devices"
    CROWDED_OUT = "misses its deadline because of other jobs; {state} spare devices"
    NO_DEADLINE = "no deadline: {state} spare devices"
    NEXT_TURN = "has waited longest: starts as soon as promised jobs leave room for it"
    HAS_TURN = "has waited longest: runs until it ends"
    # Queues
    QUEUED = "waits in the queue until enough devices are free"
    BEHIND = "waits behind a job that arrived earlier"
    NEEDS_DEVICES = "waits for {devices} free devices to start"
    NO_ROOM = "waits: jobs that arrived earlier need the whole pool for their smallest allocations"
    CANNOT_RUN = "waits: no node has devices that the job can use"
    HEAD_OF_QUEUE = "head of the queue: starts on {devices} free devices"
    TAKES_OVER = "head of the queue: starts on {devices} devices of jobs with longer training times"
    HALVED = "longest training time while jobs wait: shrinks to {devices} devices"
    STARTS_SMALL = "starts on {devices} of up to {most_devices} devices"
    GROWS = "grows from {before_devices} to {devices} devices, because devices are free"
    PLANNED = "{devices} devices now; in the plan, {progress} within the next {minutes:g} min"
    # Costs
    CHEAPEST = "cheapest free placement; the job has no deadline"
    CHEAPEST_IN_TIME = "cheapest free placement that meets its deadline, with {slack_s:.0f} s of slack"
    TOO_SLOW = "will be {late_s:.0f} s late: no node is fast enough"
    FAST_NODES_TAKEN = "will be {late_s:.0f} s late: other jobs use the nodes that are fast enough"
    COSTS_LESS_TO_WAIT = "{state}: waiting costs less for this job than for the jobs that got the devices"
    # The arbiter
    NO_ANSWER = "no answer from the arbiter yet; is it running?"
    SPEED_UNKNOWN = "its speed is not known yet"
    WAITS_UNMEASURED = "waits for free devices; its speed is not known yet"
    AWAITS_RELEASE = "gets {devices} devices as soon as other jobs have released enough"
    WARM_UP = "all devices are in use by jobs that have just started"
    POOL_RESERVED = "all devices of the pool are reserved for jobs whose tasks have ended"
    POOL_TOO_SMALL = "the pool is too small: it has {devices} devices, the job needs {needed_devices}"


class _Amount(float):
    """A number that is shown without superfluous digits."""

    def __format__(self, spec: str) -> str:
        return super().__format__(spec or "g")


@dataclass(frozen=True)
class Reason:
    """Why a job has its devices, or waits.

    Parameters
    ----------
    kind:
        A constant to count by, in lower case: of :class:`ReasonKind`, or a policy's own.
    text:
        The sentence that people read, with the values of this decision.

    Examples
    --------
    >>> grows = Reason.of(ReasonKind.GROWS, before_devices=2, devices=4)
    >>> grows.kind, str(grows)
    ('grows', 'grows from 2 to 4 devices, because devices are free')
    >>> share = Reason.of("equal_share", "{devices} devices, as many as {jobs} other jobs have", devices=3, jobs=2)
    >>> share.kind, str(share.in_units(0.05, "cores"))
    ('equal_share', '0.15 cores, as many as 2 other jobs have')
    """

    kind: str
    text: str
    _sentence: str = field(default="", repr=False, compare=False)
    _values: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, kind: ReasonKind | str, sentence: str = "", **values: object) -> Reason:
        """Return a reason of Paceline's own, or one with a policy's own constant and ``sentence``.

        ``values`` are those in braces in the sentence. Numbers of devices are called ``devices`` or ``…_devices``: a
        policy counts in the smallest shares of the devices, and the arbiter converts these numbers.
        """
        if isinstance(kind, ReasonKind):
            return cls.of(kind.name.lower(), kind.value, **values)
        return cls(kind, _written(sentence, values), sentence, values)

    def in_units(self, quantum: float, unit: Unit) -> Reason:
        """Return the reason with its numbers of devices multiplied by ``quantum``, and ``unit`` as what they count."""
        counts = {
            name: _Amount(round(value * quantum, 6))
            for name, value in self._values.items()
            if isinstance(value, (int, float)) and (name == "devices" or name.endswith("_devices"))
        }
        if not counts:
            return self
        sentence = _WORD.sub(unit, self._sentence)
        return replace(self, text=_written(sentence, {**self._values, **counts}))

    @classmethod
    def read(cls, raw: object) -> Reason | None:
        """Read a value of the live state, which any user may have written; ``None`` if it has no text.

        >>> Reason.read("stored as a sentence")
        Reason(kind='other', text='stored as a sentence')
        """
        fields = raw if isinstance(raw, Mapping) else {"text": raw}
        kind, text = (  # JSON allows lone surrogates
            value.encode(errors="replace").decode() if isinstance(value := fields.get(name), str) else ""
            for name in ("kind", "text")
        )
        return cls(kind or _OTHER, text) if text else None

    def to_json(self) -> dict[str, str]:
        """Return the stored form, which ``read`` accepts."""
        return {"kind": self.kind, "text": self.text}

    def __str__(self) -> str:
        return self.text


def _written(sentence: str, values: Mapping[str, object]) -> str:
    return _ONE.sub(r"\1", sentence.format(**values))
