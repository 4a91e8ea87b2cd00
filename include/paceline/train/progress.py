"""The progress line, with which a training job reports its progress.

``track`` writes it inside the job: one JSON object per line on standard output, after ``MARKER``. The control loop
outside the job parses it. Standard library only: this module is copied into training containers.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field

MARKER = "@paceline "
MAX_RESAMPLES = 10_000
MAX_BLOCKS = 100
_MAX_SOURCE_LENGTH = 40
_MAX_WHOLE_NUMBER = 2**53  # whole numbers up to this limit are exact in every JSON reader and divide without overflow


@dataclass(frozen=True)
class Resamples:
    """The values of one metric on bootstrap resamples of ``rows`` rows, or a part of them.

    ``values[k]`` is the value on resample number ``first + k``, or ``None`` if the metric is undefined there.
    ``groups`` is the number of groups that were drawn as a whole, or ``None`` if single rows were drawn. ``without[k]``
    is the value on all rows except block ``k`` of successive rows or groups; all blocks have about the same size.
    """

    rows: int
    values: tuple[float | None, ...]
    first: int = 0
    groups: int | None = None
    without: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Progress:
    """The progress of a training job.

    ``done`` and ``total`` count batches of all epochs (equation (2) of DECOR-NN gives ``total``), or, in the lines of a
    parameter server, samples: ``unit`` names which. ``total`` may change while the job runs, for example after an early
    stop. ``may_end_early`` says that ``total`` is only a limit or a
    forecast, because a metric decides when training ends. ``epoch`` counts from 0. ``loss`` and ``metrics`` are the
    newest reported values, without those that are NaN or infinite, which ``undefined`` names. ``spent`` describes the
    work of a parameter server's worker since its start: the ``samples`` and ``batches`` done, the seconds ``compute_s``
    to train them, and the seconds ``update_s`` to send changes and receive the newest state. It is empty for other
    jobs. ``devices_in_force`` is the number of whole devices that a ``data_parallel`` job uses now, else ``None``.
    ``save_s`` is the duration of the last checkpoint, ``validation_s`` the forecast duration of the validation after an
    epoch, and ``tail_s`` the time that the training code needs after its last batch, and ``resize_s`` the time for
    which the last change of ``devices_in_force`` has interrupted training; each is ``None`` while unknown. ``gpu_s``
    are the seconds for which the job's GPUs have computed for this process, if it keeps to a share of their time.
    ``monotonic_s`` and ``wall_s`` are times on the job's clocks. ``source`` identifies the process that wrote the line,
    and ``number`` counts the lines of this process, so that a reader recognises repeated lines; ``number`` is 0 in a
    process that does not count its lines.

    ``event`` is one of

    - ``"start"``: before the first batch, also after a restart (``done`` is then the batch at which training resumes),
    - ``"progress"``,
    - ``"epoch_end"``: the last batch of an epoch begins; a validation may follow before the next ``"progress"``.
      Omitted for short epochs,
    - ``"checkpoint"``: the state after ``done`` batches is safe on disk,
    - ``"resized"``: the number of devices has changed,
    - ``"finish"``: the loop is over and its final state is safe on disk; ``done`` equals ``total``,
    - ``"report"``: metrics from outside a loop, for example from an evaluation script. ``done`` and ``total`` repeat
      those of the previous loop, or are 1 without a loop. Controllers ignore these lines. Earlier lines of
      the same event may contain ``resamples`` of the metrics, but neither loss nor metrics. Many metrics take several
      lines. If ``newer_follows``, a newer line follows, at the latest when the process exits.
    """

    done: int
    total: int
    epoch: int = 0
    epochs: int = 1
    event: str = "progress"
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    undefined: tuple[str, ...] = ()
    newer_follows: bool = False
    resamples: dict[str, Resamples] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    device: str = "cpu"
    threads: int = 1
    devices_in_force: int | None = None
    save_s: float | None = None
    validation_s: float | None = None
    tail_s: float | None = None
    resize_s: float | None = None
    gpu_s: float | None = None
    may_end_early: bool = False
    unit: str = "batches"
    monotonic_s: float = 0.0
    wall_s: float = 0.0
    source: str = ""
    number: int = 0

    @property
    def percent(self) -> float:
        """Progress in percent, equation (1) of DECOR-NN; 100 at the finish, even for a worker without a batch.

        >>> Progress(done=30, total=120).percent
        25.0
        """
        return 100.0 if self.event == "finish" else 100.0 * self.done / self.total

    def to_line(self) -> str:
        """Return one line for standard output, without the line end.

        JSON has no NaN or infinity: a loss with such a value becomes ``null``, a metric with such a value is omitted,
        and ``undefined`` names both. Rare keys are present only with a value.

        >>> Progress(done=1, total=2, loss=float("nan"), metrics={"mae": float("inf")}).to_line()[:66]
        '@paceline {"done":1,"total":2,"epoch":0,"epochs":1,"event":"progre'
        """
        data = asdict(self)
        data["loss"] = _finite(self.loss)
        data["metrics"] = {k: v for k, v in self.metrics.items() if _finite(v) is not None}
        reported = self.metrics if self.loss is None else {**self.metrics, "loss": self.loss}
        data["undefined"] = [*self.undefined, *(name for name, value in reported.items() if _finite(value) is None)]
        for part in data["resamples"].values():
            for field_name in ("values", "without"):
                part[field_name] = [_finite(value) for value in part[field_name]]
        for rare in ("undefined", "newer_follows", "resamples", "may_end_early"):
            if not data[rare]:
                del data[rare]
        for optional in ("tail_s", "gpu_s"):
            if data[optional] is None:
                del data[optional]
        if self.unit == "batches":
            del data["unit"]
        return MARKER + json.dumps(data, separators=(",", ":"), allow_nan=False)


def parse_line(line: str) -> Progress | None:
    """Parse a progress line; return ``None`` if ``line`` has no marker.

    Raises ``ValueError`` with the reason if the line has the marker but no valid progress.

    >>> parse_line("epoch 3 done") is None
    True
    >>> parse_line('@paceline {"done": 5, "total": 20}').percent
    25.0
    >>> parse_line('@paceline {"done": 5, "total": 0}')
    Traceback (most recent call last):
    ValueError: total: got 0, expected a whole number of at least 1
    """
    if not line.startswith(MARKER):
        return None
    try:
        data = json.loads(line[len(MARKER) :])
    except RecursionError:
        raise ValueError("expected a JSON object, got an object that is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError(f"expected a JSON object, got {type(data).__name__}")
    done = _whole_number(data, "done", minimum=0)
    total = _whole_number(data, "total", minimum=1)
    if done > total:
        raise ValueError(f"done: got {done}, expected at most total = {total}")
    event = str(data.get("event", "progress"))
    return Progress(
        done=done,
        total=total,
        epoch=_whole_number(data, "epoch", minimum=0, default=0),
        epochs=_whole_number(data, "epochs", minimum=1, default=1),
        event=event,
        loss=_finite(data.get("loss")),
        metrics=_finite_numbers(data, "metrics"),
        undefined=_undefined(data),
        newer_follows=data.get("newer_follows") is True,
        resamples=_resamples(data) if event == "report" else {},
        spent=_finite_numbers(data, "spent"),
        device=str(data.get("device", "cpu")),
        threads=_whole_number(data, "threads", minimum=1, default=1),
        devices_in_force=None
        if data.get("devices_in_force") is None
        else _whole_number(data, "devices_in_force", minimum=1),
        save_s=_seconds(data, "save_s"),
        validation_s=_seconds(data, "validation_s"),
        tail_s=_seconds(data, "tail_s"),
        resize_s=_seconds(data, "resize_s"),
        gpu_s=_seconds(data, "gpu_s"),
        may_end_early=data.get("may_end_early") is True,
        unit="samples" if data.get("unit") == "samples" else "batches",
        monotonic_s=_finite(data.get("monotonic_s")) or 0.0,
        wall_s=_finite(data.get("wall_s")) or 0.0,
        source=str(data.get("source", ""))[:_MAX_SOURCE_LENGTH],
        number=_whole_number(data, "number", minimum=0, default=0),
    )


def _finite_numbers(data: dict[str, object], name: str) -> dict[str, float]:
    values = data.get(name) or {}
    if not isinstance(values, dict):
        raise ValueError(f"{name}: got {values!r}, expected an object")
    return {_storable(key): number for key, value in values.items() if (number := _finite(value)) is not None}


def _undefined(data: dict[str, object]) -> tuple[str, ...]:
    """Return the names of the loss and metrics that are not finite numbers."""
    names = data.get("undefined") or []
    if not isinstance(names, list):
        raise ValueError(f"undefined: got {names!r}, expected a list of names")
    metrics = data.get("metrics")
    not_finite = (
        name for name, value in (metrics if isinstance(metrics, dict) else {}).items() if _finite(value) is None
    )
    return tuple(_storable(str(name)) for name in (*names, *not_finite))


def _storable(key: str) -> str:
    """Replace lone surrogates, which JSON allows but which cannot be encoded for storage."""
    return key.encode(errors="replace").decode()


def _resamples(data: dict[str, object]) -> dict[str, Resamples]:
    parts = data.get("resamples") or {}
    if not isinstance(parts, dict):
        raise ValueError(f"resamples: got {type(parts).__name__}, expected an object")
    return {_storable(key): _resamples_of_metric(part) for key, part in parts.items()}


def _resamples_of_metric(part: object) -> Resamples:
    values = part.get("values") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(values, list):
        raise ValueError("resamples: expected an object with rows, first and a list of values for each metric")
    first = _whole_number(part, "first", minimum=0, default=0)
    if first + len(values) > MAX_RESAMPLES:
        raise ValueError(f"resamples: got {first + len(values)} values, expected at most {MAX_RESAMPLES}")
    without = part.get("without") or []
    if not isinstance(without, list) or len(without) > MAX_BLOCKS:
        raise ValueError(f"resamples: expected a list of at most {MAX_BLOCKS} values without one block")
    groups = _whole_number(part, "groups", minimum=1) if part.get("groups") is not None else None
    rows = _whole_number(part, "rows", minimum=1)
    return Resamples(rows, tuple(map(_finite, values)), first, groups, tuple(map(_finite, without)))


def _seconds(data: dict[str, object], name: str) -> float | None:
    seconds = _finite(data.get(name))
    return seconds if seconds is not None and seconds >= 0 else None


def _whole_number(data: dict[str, object], name: str, *, minimum: int, default: int | None = None) -> int:
    value = data.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name}: got {value!r}, expected a whole number of at least {minimum}")
    if value > _MAX_WHOLE_NUMBER:
        raise ValueError(f"{name}: got a number of {value.bit_length()} bits, expected at most 2**53")
    return value


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the range of float
        return None
    return number if math.isfinite(number) else None
