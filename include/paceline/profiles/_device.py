"""The profile of one kind of device: its learned functions, their origin, and whether they are stale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pydantic import ValidationError

from paceline.contract import FunctionFit
from paceline.errors import InvalidInputError, PacelineError
from paceline.profiles._file import StoredFunction, StoredProfile
from paceline.profiles._functions import FUNCTIONS, Function, execution
from paceline.profiles._origin import Origin
from paceline.profiles.learn import Learned, learn

if TYPE_CHECKING:
    import pandas as pd

_MAX_AGE = timedelta(days=90)
_UNITS = {"cores": "cores", "memory_gib": "GiB of memory", "gpus": "GPUs"}


class NoProfileError(PacelineError):
    """Raised when there is no profile of a kind of device, or of an application on that kind."""


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

    def report(self) -> list[FunctionFit]:
        """Return the functions with their errors, as in the paper's Table I."""
        return [
            FunctionFit(
                device=self.kind,
                function=learned.function.name,
                points=learned.points,
                regression=learned.regression,
                mape_pct=learned.mape_pct,
                mape_sd_pct=learned.mape_sd_pct,
            )
            for learned in self.learned.values()
        ]

    def dumps(self) -> bytes:
        """Serialise the profile as JSON, with the measured points."""
        functions = tuple(map(StoredFunction.of, self.learned.values()))
        sizes = tuple(self.batch_sizes)
        stored = StoredProfile(kind=self.kind, batch_sizes=sizes, origin=self.origin, functions=functions)
        return stored.model_dump_json().encode()

    @classmethod
    def loads(cls, data: bytes) -> DeviceProfile:
        """Read the result of ``dumps``. Raises ``InvalidInputError`` for other or damaged bytes."""
        try:
            stored = StoredProfile.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            reason = ".".join(map(str, first["loc"])) + f": {first['msg']}" if first["loc"] else first["msg"]
            accepted = f"a device profile of this version ({reason})"
            raise InvalidInputError("profile", f"{len(data)} bytes", accepted) from None
        learned = {one.name: one.learned() for one in stored.functions}
        return cls(stored.kind, learned, stored.batch_sizes, stored.origin)
