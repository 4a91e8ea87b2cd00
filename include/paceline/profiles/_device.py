"""The profile of one kind of device: its learned functions, their origin, and whether they are stale."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError, PacelineError
from paceline.profiles._functions import FUNCTIONS, Function, execution
from paceline.profiles.learn import Learned, learn

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2
_MAX_AGE = timedelta(days=90)
_UNITS = {"cores": "cores", "memory_gib": "GiB of memory", "gpus": "GPUs"}
# Classes of scikit-learn models that skops does not trust by default.
_TRUSTED = [
    "sklearn.gaussian_process.kernels.ConstantKernel",
    "sklearn.gaussian_process.kernels.Matern",
    "sklearn.gaussian_process.kernels.Product",
    "sklearn.gaussian_process.kernels.Sum",
    "sklearn.gaussian_process.kernels.WhiteKernel",
    "sklearn.tree._tree.Tree",
    "sklearn.utils._bunch.Bunch",
]


class NoProfileError(PacelineError):
    """Raised when there is no profile of a kind of device, or of an application on that kind."""


@dataclass(frozen=True)
class Origin:
    """The training job, machine and time of a measurement.

    Parameters
    ----------
    training:
        Fingerprint of the training code, the model and the image.
    cores, memory_gib, gpus:
        Size of the measured machine.
    measured_at:
        Time in ISO 8601 with a zone.
    """

    training: str
    cores: float
    memory_gib: float
    gpus: int
    measured_at: str


@dataclass(frozen=True)
class DeviceProfile:
    """The learned functions of a kind of device.

    Parameters
    ----------
    kind:
        Kind of device.
    learned:
        Mapping of names to learned functions.
    batch_sizes:
        The measured batch sizes, ascending; a scheduler chooses among them.
    origin:
        Origin of the measurements.
    """

    kind: str
    learned: Mapping[str, Learned]
    batch_sizes: Sequence[int]
    origin: Origin

    @classmethod
    def fit(
        cls,
        kind: str,
        measurements: pd.DataFrame,
        origin: Origin,
        *,
        apps: Sequence[str] = (),
        seed: int = 0,
        on_learned: Callable[[Learned], None] = lambda learned: None,
    ) -> DeviceProfile:
        """Learn all functions of a kind, and the execution times of ``apps``, from the kind's measurements.

        Learning takes seconds for each function; ``on_learned`` is called after each.
        """
        functions = [*FUNCTIONS, *map(execution, apps)]
        # Some measurements ended before an application's first execution; drop these rows.
        learned = {}
        for one in functions:
            rows = measurements.dropna(subset=list({one.target} & set(measurements)))
            learned[one.name] = learn(one, rows, seed=seed)
            on_learned(learned[one.name])
        sizes = sorted({int(size) for size in measurements["batch_size"]})
        return cls(kind, learned, sizes, origin)

    def __getitem__(self, function: Function) -> Learned:
        """Return the learned function. Raises ``NoProfileError`` if it was not measured."""
        try:
            return self.learned[function.name]
        except KeyError:
            known = ", ".join(self.learned)
            raise NoProfileError(f"the profile of {self.kind} has no {function.name}; it has {known}") from None

    def stale_reason(
        self, now: datetime, *, training: str, cores: float, memory_gib: float, gpus: int, max_age: timedelta = _MAX_AGE
    ) -> str | None:
        """Return why the profile is stale, as a phrase; ``None`` if it is not.

        >>> origin = Origin("a1", cores=4, memory_gib=4, gpus=0, measured_at="2030-01-01T00:00:00+00:00")
        >>> profile = DeviceProfile("nano", {}, (8,), origin)
        >>> from datetime import timezone
        >>> now = datetime(2030, 1, 2, tzinfo=timezone.utc)
        >>> profile.stale_reason(now, training="a1", cores=4, memory_gib=4, gpus=0) is None
        True
        >>> profile.stale_reason(now, training="b2", cores=4, memory_gib=4, gpus=0)
        'it was measured with another training job (a1, now b2)'
        """
        origin = self.origin
        age = now - datetime.fromisoformat(origin.measured_at)
        if age > max_age:
            return f"it was measured {age.days} days ago, more than {max_age.days}"
        if origin.training != training:
            return f"it was measured with another training job ({origin.training}, now {training})"
        for name, (measured, current) in self.differences(cores=cores, memory_gib=memory_gib, gpus=gpus).items():
            return f"it was measured on a machine with {measured:g} {_UNITS[name]}, now {current:g}"
        return None

    def differences(self, *, cores: float, memory_gib: float, gpus: int) -> dict[str, tuple[float, float]]:
        """Return the resources in which a machine differs from the measured one: the measured and the current value.

        >>> profile = DeviceProfile("nano", {}, (8,), Origin("a1", 0.5, 4, 0, "2030-01-01T00:00:00+00:00"))
        >>> profile.differences(cores=0.05, memory_gib=4, gpus=0)
        {'cores': (0.5, 0.05)}
        """
        current = {"cores": cores, "memory_gib": memory_gib, "gpus": gpus}
        both = {name: (getattr(self.origin, name), value) for name, value in current.items()}
        return {name: (measured, value) for name, (measured, value) in both.items() if measured != value}

    def report(self) -> list[dict[str, Any]]:
        """Return one row per function with its errors, as in the paper's Table I."""
        return [
            {
                "device": self.kind,
                "function": learned.function.name,
                "points": learned.points,
                "regression": learned.regression,
                "mape_pct": learned.mape_pct,
                "mape_sd_pct": learned.mape_sd_pct,
            }
            for learned in self.learned.values()
        ]

    def dumps(self) -> bytes:
        """Serialise the profile in the format of skops. Reading the bytes does not run code from them."""
        about = {
            "format": FORMAT,
            "kind": self.kind,
            "batch_sizes": list(self.batch_sizes),
            "origin": asdict(self.origin),
            "functions": [
                {
                    **asdict(one.function),
                    "regression": one.regression,
                    "points": one.points,
                    "mape_pct": one.mape_pct,
                    "mape_sd_pct": one.mape_sd_pct,
                    "low": one.low,
                    "high": one.high,
                }
                for one in self.learned.values()
            ],
        }
        models = {name: one.model for name, one in self.learned.items()}
        return bytes(_import_skops().dumps({"about": json.dumps(about), "models": models}))

    @classmethod
    def loads(cls, data: bytes) -> DeviceProfile:
        """Read the result of ``dumps``. Raises ``InvalidInputError`` for other or damaged bytes."""
        try:
            content = _import_skops().loads(data, trusted=_TRUSTED)
            about, models = json.loads(content["about"]), content["models"]
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']}")
            learned = {}
            for one in about["functions"]:
                function = Function(one["name"], one["target"], tuple(one["features"]), one["share"])
                quality = one["regression"], one["points"], one["mape_pct"], one["mape_sd_pct"]
                limits = tuple(map(float, one["low"])), tuple(map(float, one["high"]))
                learned[function.name] = Learned(function, models[function.name], *quality, *limits)
            return cls(about["kind"], learned, about["batch_sizes"], Origin(**about["origin"]))
        except Exception as error:  # an invalid file may cause any exception
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            accepted = f"a device profile of this version ({reason})"
            raise InvalidInputError("profile", f"{len(data)} bytes", accepted) from None


def _import_skops() -> Any:
    """Import ``skops.io``. Suppress the deprecation warnings of the modules that skops inspects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import skops.io
    return skops.io
