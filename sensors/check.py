"""``DriftCheck``: the sources of both windows and the settings of a drift check, as a value that JSON can store.

``DriftSensor`` and the triggers create checks. Airflow stores a trigger's check with the trigger. A check whose
reference is the champion's training data looks it up in the registry.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import UUID

from paceline.airflow.windows import (
    CHAMPION,
    DataWindow,
    Parameters,
    Snapshot,
    cached_window,
    check_file_name,
    describe,
    identify_file,
    is_sql,
    read_window,
)
from paceline.contract import WindowSource
from paceline.drift import DriftSettings
from paceline.drift.class_probabilities import prediction_columns, read_prediction
from paceline.drift.compare import check_column_pair
from paceline.drift.quality import check_age_column, describe_severe, find_stale_rows
from paceline.drift.seasons import SEASONS
from paceline.drift.units import check_roles
from paceline.errors import InvalidInputError
from paceline.extras import require
from paceline.runtime.temporary import TemporaryFolder

if TYPE_CHECKING:
    from paceline.drift import DriftReport

# A reference that stands for the data on which the champion of ``model`` was trained.


class CheckOptions(TypedDict, total=False):
    """Keyword arguments of ``DriftCheck``, as a type."""

    reference: str
    current: str
    conn_id: str | None
    reference_parameters: Parameters | None
    current_parameters: Parameters | None
    features: list[str] | None
    categorical: list[str]
    prediction: str | Mapping[str, str] | None
    actual: str | None
    time: str | None
    groups: str | None
    season: str | None
    segments: str | None
    settings: DriftSettings
    model: str | None
    registry: str | None
    signing_conn_id: str | None


@dataclasses.dataclass(frozen=True)
class DriftCheck:
    """The sources of both windows (see ``paceline.airflow.windows``) and the settings of their comparison.

    ``window_column`` identifies the current window (see ``read_window``) and is not compared. ``reference_conn_id`` is
    the connection for the reference, if it is not ``conn_id``. ``champion`` describes the model version that was
    trained on the reference. If the registry has a copy of the reference, ``reference_version`` is the version's
    number and ``reference_sha256`` the copy's digest, and the copy is read.
    """

    reference: str
    current: str
    conn_id: str | None = None
    reference_parameters: Parameters | None = None
    current_parameters: Parameters | None = None
    features: list[str] | None = None
    categorical: list[str] = dataclasses.field(default_factory=list)
    prediction: str | Mapping[str, str] | None = None
    actual: str | None = None
    time: str | None = None
    groups: str | None = None
    season: str | None = None
    segments: str | None = None
    settings: DriftSettings = dataclasses.field(default_factory=DriftSettings)
    model: str | None = None
    registry: str | None = None
    signing_conn_id: str | None = None
    window_column: str | None = None
    reference_conn_id: str | None = None
    champion: str = ""
    reference_version: int | None = None
    reference_sha256: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.settings, dict):  # the result of ``to_dict``
            object.__setattr__(self, "settings", DriftSettings(**self.settings))
        elif not isinstance(self.settings, DriftSettings):
            raise InvalidInputError("settings", self.settings, "DriftSettings(...)")
        for field in ("features", "categorical"):
            if isinstance(getattr(self, field), str):
                raise InvalidInputError(field, getattr(self, field), "a list of column names")
        if self.signing_conn_id is not None and (not isinstance(self.signing_conn_id, str) or not self.signing_conn_id):
            raise InvalidInputError("signing_conn_id", self.signing_conn_id, "the id of a connection, or None")
        check_column_pair(self.prediction, self.actual)
        object.__setattr__(self, "prediction", read_prediction(self.prediction))
        roles = {"groups": self.groups, "season": self.season, "segments": self.segments}
        if self.window_column is not None and self.window_column == self.segments:
            accepted = "a column other than window_column, whose values differ between the windows"
            raise InvalidInputError("segments", self.segments, accepted)
        check_roles(roles, (*prediction_columns(self.prediction), self.actual), self.time)
        check_age_column(self.time, self.settings.quality)
        check_champion(self.reference, self.model, self.registry, self.settings)

    def resolve(self) -> DriftCheck | None:
        """Return the check with the champion's training data as its reference, or ``None`` without a champion.

        A check with any other reference is returned unchanged.
        """
        if self.reference != CHAMPION or self.model is None or self.registry is None:
            return self
        # mypy does not find the operators' folder by this name.
        from paceline.airflow.places import open_registry

        champion = open_registry(self.registry, self.signing_conn_id).champion(self.model)
        if champion is None:
            return None
        window, copy = WindowSource.read(champion.data_window), champion.reference
        if copy is not None and (window is None or window.source == CHAMPION):
            window = WindowSource(source=copy.path)
        if window is None or window.source == CHAMPION:
            raise InvalidInputError(
                "reference",
                CHAMPION,
                f"a champion whose data_window contains the source of its training data, as with EvaluateOperator("
                f"data_window=drift.output['window']); that of {self.model} version {champion.version} is "
                f"{champion.data_window}",
            )
        return dataclasses.replace(
            self,
            reference=window.source,
            reference_parameters=window.parameters,
            reference_conn_id=window.conn_id,
            champion=f"{self.model} version {champion.version}",
            reference_version=None if copy is None else champion.version,
            reference_sha256=None if copy is None else copy.sha256,
        )

    def run(self) -> DriftReport:
        """Read and compare both windows. This method blocks, so asynchronous code must call it in a thread."""
        return self.measure()[0]

    def measure(self, now: datetime | None = None) -> tuple[DriftReport, DataWindow]:
        """Read and compare both windows. Return the report and the current window.

        Rows are stale with respect to ``now``, by default the current time.
        """
        with Snapshot() as snapshot:
            current = self.read_current(snapshot)
            check = self.resolve()
            if check is None:
                return self.without_champion(current, now), current
            return check.compare(current, now, snapshot), current

    def without_champion(self, current: DataWindow, now: datetime | None = None) -> DriftReport:
        """Return the report of a check whose model has no champion."""
        from paceline.drift import DriftReport

        minimum = self.settings.minimum_samples
        if len(current.frame) < minimum:
            reason = f"current: got {current.rows} rows, expected at least {minimum} (minimum_samples)"
            return DriftReport("not enough data", reason, 0, current.rows)
        stale = find_stale_rows(current.frame, self.time, self.settings.quality, now)
        is_bad = any(problem.severe for problem in stale)
        return DriftReport(
            "bad data" if is_bad else "no champion",
            describe_severe(stale) if is_bad else self._describe_missing_champion(),
            0,
            current.rows,
            current=describe(self.current, self.current_parameters),
            settings=self.settings.to_dict(),
            quality=tuple(stale),
        )

    def _describe_missing_champion(self) -> str:
        from paceline.airflow.places import open_registry

        assert self.model is not None
        assert self.registry is not None
        registry = open_registry(self.registry, self.signing_conn_id)
        similar = () if registry.numbers(self.model) else get_close_matches(self.model, registry.models())
        hint = f" It has {', '.join(similar)}: is the name of the model right?" if similar else ""
        return f"{self.model} has no champion yet in {self.registry}.{hint}"

    def read_current(self, snapshot: Snapshot | None = None) -> DataWindow:
        """Read the current window."""
        return self._read("current", self.current, self.conn_id, self.current_parameters, snapshot, self.window_column)

    def compare(
        self, current: DataWindow, now: datetime | None = None, snapshot: Snapshot | None = None
    ) -> DriftReport:
        """Read the reference and compare the current window with it. Rows are stale with respect to ``now``.

        Close the ``snapshot`` before the comparison, which may take minutes.
        """
        from paceline.drift import compare

        name = describe(self.reference, self.reference_parameters)
        reference = self._read_reference(snapshot)
        if snapshot is not None:
            snapshot.close()
        predictions = prediction_columns(self.prediction)
        used = (*(self.features or ()), *predictions, self.actual, self.time, self.groups, self.season, self.segments)
        left_out = [] if self.window_column is None or self.window_column in used else [self.window_column]
        before = reference.frame.drop(columns=left_out, errors="ignore")
        if self.champion and self.prediction is not None:
            # The predictions in the champion's training data are those of its predecessor.
            before = before.drop(columns=prediction_columns(self.prediction), errors="ignore")
        try:
            return compare(
                before,
                current.frame.drop(columns=left_out, errors="ignore"),
                columns=self.features,
                categorical=self.categorical,
                prediction=self.prediction,
                actual=self.actual,
                time=self.time,
                groups=self.groups,
                season=self.season,
                segments=self.segments,
                settings=self.settings,
                reference_name=f"training data of {self.champion}: {name}" if self.champion else name,
                current_name=describe(self.current, self.current_parameters),
                reference_rows=reference.rows,
                current_rows=current.rows,
                now=now,
            )
        except InvalidInputError as error:
            if error.field != "columns":
                raise
            raise InvalidInputError("features", error.value, error.accepted) from None

    def _read_reference(self, snapshot: Snapshot | None) -> DataWindow:
        """Read the reference; read the same file, or the data of the same champion, only once."""
        conn_id = self.reference_conn_id or self.conn_id

        def read() -> DataWindow:
            if self.reference_version is not None:
                return self._read_copy(self.reference_version)
            return self._read("reference", self.reference, conn_id, self.reference_parameters, snapshot)

        if is_sql(self.reference) and not self.champion:
            return read()  # the query may return different rows each time
        try:
            identity = self.reference_sha256
            if identity is None:
                identity = self.champion if is_sql(self.reference) else identify_file("reference", self.reference)
            columns, max_rows = self._columns(), self.settings.max_rows
            parts = (self.registry, self.reference, self.reference_parameters, conn_id, columns, max_rows, identity)
            return cached_window(repr(parts), read)
        except InvalidInputError as error:
            if not self.champion:
                raise
            accepted = (
                f"{error.accepted}: the training data of {self.champion}, the champion in {self.registry}. Restore it, "
                "promote a version whose training data exists, or give reference= a query or a file instead of "
                f"{CHAMPION!r} until a newly trained version is champion"
            )
            value = self.reference if error.field == "reference" else error.value
            raise InvalidInputError(error.field, value, accepted) from error

    def _read_copy(self, number: int) -> DataWindow:
        """Read the copy of the reference from the registry. Its digest is checked before."""
        from paceline.airflow.places import open_registry

        assert self.registry is not None
        assert self.model is not None
        registry = open_registry(self.registry, self.signing_conn_id)
        with TemporaryFolder() as folder:
            path = registry.fetch_reference(registry.version(self.model, number), folder)
            return self._read("reference", str(path), None, None, None)

    def _read(
        self,
        field: str,
        source: str,
        conn_id: str | None,
        parameters: Parameters | None,
        snapshot: Snapshot | None,
        column: str | None = None,
    ) -> DataWindow:
        require("worker", "pandas", "pyarrow", "river", "sklearn", "scipy")
        return read_window(
            field,
            source,
            conn_id=conn_id,
            parameters=parameters,
            columns=self._columns(column),
            max_rows=self.settings.max_rows,
            window_column=column,
            optional=[self.actual] if field == "current" and self.actual else [],  # labels come later
            snapshot=snapshot,
        )

    def _columns(self, *more: str | None) -> list[str] | None:
        """Return the columns that the comparison needs, or ``None`` for all."""
        if self.features is None:
            return None
        season = None if self.season in SEASONS else self.season
        predictions = prediction_columns(self.prediction)
        others = (*predictions, self.actual, self.time, self.groups, season, self.segments, *more)
        return [*dict.fromkeys(c for c in (*self.features, *others) if c)]

    def window(self) -> WindowSource:
        """Return the source of the current window, as the ``data_window`` of a model that is trained on it."""
        parameters = self.current_parameters
        plain = dict(parameters) if isinstance(parameters, Mapping) else list(parameters) if parameters else None
        stored = json.loads(json.dumps(plain, default=str))
        return WindowSource(source=self.current, parameters=stored, conn_id=self.conn_id)

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of ``DriftCheck(**…)`` as plain JSON values. Tuples become lists, and dates texts."""
        loaded: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=_to_text))
        return loaded

    def fingerprint(self) -> str:
        """Return a digest of the check's parameters.

        >>> DriftCheck("a.csv", "b.csv").fingerprint() == DriftCheck("a.csv", "c.csv").fingerprint()
        False
        """
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def _to_text(value: object) -> str:
    """Return a value of a query's parameters as text. Other values have no text that a database understands."""
    if isinstance(value, (date, Decimal, UUID)):
        return str(value)
    accepted = "parameters of queries that can be stored: texts, numbers, truth values, dates and lists of them"
    raise InvalidInputError("reference_parameters, current_parameters", value, accepted)


def check_sources(reference: object, current: object) -> None:
    """Raise InvalidInputError if a window is neither a query nor the path of a file, as far as its text shows.

    Templates, and the files of templates, are known only when the task runs.
    """
    for field, source in (("reference", reference), ("current", current)):
        if not isinstance(source, str) or "{{" in source or "{%" in source or source.endswith(".sql"):
            continue
        is_champion = field == "reference" and source == CHAMPION
        if not (is_champion or is_sql(source)):
            check_file_name(field, source, f", or {CHAMPION!r}" if field == "reference" else "")


def check_champion(reference: object, model: object, registry: object, settings: DriftSettings) -> None:
    """Raise InvalidInputError if the reference is the champion and another parameter is incompatible with that."""
    if reference != CHAMPION:
        return
    for field, value in (("model", model), ("registry", registry)):
        if not value:
            raise InvalidInputError(field, value, "a value, because the reference is the champion")
    if settings.error == "auc":
        accepted = "another kind of error: 'auc' needs a reference with the model's own predictions, not the champion's"
        raise InvalidInputError("error", settings.error, f"{accepted} training data")
