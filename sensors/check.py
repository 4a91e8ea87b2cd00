"""``DriftCheck``: the sources of both windows and the settings of a drift check, as a value that JSON can store.

``DriftSensor`` and the triggers create checks. Airflow stores a trigger's check with the trigger.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, TypedDict

from paceline.drift import DriftSettings
from paceline.drift.compare import check_column_pair
from paceline.errors import InvalidInputError

from .windows import Parameters, describe, read_window

if TYPE_CHECKING:
    from paceline.drift import DriftReport


class CheckOptions(TypedDict, total=False):
    """Keyword arguments of ``DriftCheck``, as a type."""

    reference: str
    current: str
    conn_id: str | None
    reference_parameters: Parameters | None
    current_parameters: Parameters | None
    features: list[str] | None
    categorical: list[str]
    prediction: str | None
    actual: str | None
    time: str | None
    settings: DriftSettings


@dataclasses.dataclass(frozen=True)
class DriftCheck:
    """The sources of both windows (see ``paceline.sensors.windows``) and the settings of their comparison."""

    reference: str
    current: str
    conn_id: str | None = None
    reference_parameters: Parameters | None = None
    current_parameters: Parameters | None = None
    features: list[str] | None = None
    categorical: list[str] = dataclasses.field(default_factory=list)
    prediction: str | None = None
    actual: str | None = None
    time: str | None = None
    settings: DriftSettings = dataclasses.field(default_factory=DriftSettings)

    def __post_init__(self) -> None:
        if isinstance(self.settings, dict):  # the result of ``to_dict``
            object.__setattr__(self, "settings", DriftSettings(**self.settings))
        elif not isinstance(self.settings, DriftSettings):
            raise InvalidInputError("settings", self.settings, "DriftSettings(...)")
        check_column_pair(self.prediction, self.actual)

    def run(self) -> DriftReport:
        """Read and compare both windows. This method blocks, so asynchronous code must call it in a thread."""
        from paceline.drift import compare

        reference = read_window("reference", self.reference, conn_id=self.conn_id, parameters=self.reference_parameters)
        current = read_window("current", self.current, conn_id=self.conn_id, parameters=self.current_parameters)
        return compare(
            reference,
            current,
            columns=self.features,
            categorical=self.categorical,
            prediction=self.prediction,
            actual=self.actual,
            time=self.time,
            settings=self.settings,
            reference_name=describe(self.reference, self.reference_parameters),
            current_name=describe(self.current, self.current_parameters),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of ``DriftCheck(**…)`` as plain JSON values. Tuples become lists."""
        loaded: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return loaded

    def fingerprint(self) -> str:
        """Return a digest of the check's parameters.

        >>> DriftCheck("a.csv", "b.csv").fingerprint() == DriftCheck("a.csv", "c.csv").fingerprint()
        False
        """
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]
