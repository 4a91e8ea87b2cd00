"""``PromoteOperator``: promotes a challenger that is better than the champion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from paceline.airflow.arguments import number, optional_conn_id, optional_number, read_fields, registry_location
from paceline.airflow.metrics import send_promotion
from paceline.airflow.places import open_registry
from paceline.airflow.tasks import CheckedTask
from paceline.airflow.values import Reader, boolean
from paceline.contract import PROMOTION_XCOM, EvaluationResult, PromotionResult, PromotionVerdict
from paceline.errors import InvalidInputError
from paceline.registry import ChampionChangedError, ChampionHeldError, ModelVersion

from ._evaluation import check_evaluation, read_evaluation
from .improvement import MIN_UNITS, judge
from .links import ModelLink

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

_ACCEPTED = "at least 0, in units of the metric"

_PROMOTED: tuple[PromotionVerdict, ...] = ("first", "better", "already champion")


def _at_least_zero(field: str, value: object) -> float:
    improvement = number(field, value, _ACCEPTED)
    if improvement < 0:
        raise InvalidInputError(field, value, _ACCEPTED)
    return improvement


def _optional_confidence(field: str, value: object) -> float | None:
    accepted = "a number between 0.5 and 1, such as 0.95, or None"
    share = optional_number(field, value, accepted)
    if share is not None and not 0.5 < share < 1:
        raise InvalidInputError(field, value, accepted)
    return share


def _minimum_samples(field: str, value: object) -> int:
    accepted = f"a whole number of at least {MIN_UNITS}"
    rows = number(field, value, accepted)
    if rows != int(rows) or rows < MIN_UNITS:
        raise InvalidInputError(field, value, accepted)
    return int(rows)


_READERS: Mapping[str, Reader] = {
    "registry": registry_location,
    "min_improvement": _at_least_zero,
    "confidence": _optional_confidence,
    "minimum_samples": _minimum_samples,
}


class PromoteOperator(CheckedTask, BaseOperator):
    """A task that promotes the challenger if it is better than the champion by a required amount.

    The task succeeds with either decision; its log and its result (``promoted``) state the decision. It promotes
    nothing if another task has replaced the champion since the evaluation. The task emits asset events for its
    ``outlets`` only after a promotion, and not again if a user clears the task. So a DAG scheduled on the model's asset
    runs once for each new champion.

    Parameters
    ----------
    evaluation:
        The result of ``EvaluateOperator``, ``evaluate.output``, or of ``ApproveOperator``. (templated)
    registry:
        Path or object storage URL of the registry, or ``mlflow://CONN_ID`` for that of an MLflow server. (templated)
    min_improvement:
        Smallest improvement that leads to a promotion, in units of the metric; by default, any. (templated)
    confidence:
        Required confidence that the improvement is positive and at least ``min_improvement``, between 0.5 and 1: the
        share of the bootstrap resamples on which it is, corrected for few rows. The script has to report
        :func:`paceline.train.resampled`. By default, only the improvement on the whole hold-out data counts. The share
        is rounded down to a multiple of 0.5 %, so a confidence above 0.995 requires every resample. (templated)
    minimum_samples:
        Smallest number of hold-out rows with which a ``confidence`` can lead to a promotion, at least 20. By default
        300: errors that occur in 1 % of the rows are then absent from at most 5 % of hold-outs. With ``groups`` in
        ``resampled``, at least 20 groups are required, too. (templated)
    allow_older:
        Whether a version may replace a champion from a run for newer data, as in a backfill. The time of a run is the
        end of its data interval, or its logical date, or the time after which it may start.
    signing_conn_id:
        Id of a connection whose password is the key of ``EvaluateOperator``. The task then fails if this key has not
        signed the version or the champion.

    Returns
    -------
    dict
        ``promoted``, ``verdict``, ``reason``, ``version``, ``champion_version`` and more, see
        :class:`~paceline.contract.PromotionResult`.

    Examples
    --------
    >>> from paceline.operators import PromoteOperator
    >>> PromoteOperator(task_id="promote", evaluation={}, registry="s3://models", min_improvement=-1)
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: min_improvement: got -1, expected at least 0, in units of the metric \
(task 'promote')
    """

    template_fields: Sequence[str] = ("evaluation", "registry", "min_improvement", "confidence", "minimum_samples")
    template_fields_renderers: ClassVar[dict[str, str]] = {"evaluation": "json"}
    operator_extra_links = (ModelLink(),)
    ui_color = "#d6f5e3"

    def __init__(
        self,
        *,
        evaluation: Any,
        registry: str,
        min_improvement: float | str = 0.0,
        confidence: float | str | None = None,
        minimum_samples: int | str = 300,
        allow_older: bool = False,
        signing_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.allow_older = boolean("allow_older", allow_older)
        check_evaluation(evaluation)
        self.evaluation = evaluation
        self.registry = registry
        self.min_improvement: Any = min_improvement
        self.confidence: Any = confidence
        self.minimum_samples: Any = minimum_samples
        self.signing_conn_id = optional_conn_id("signing_conn_id", signing_conn_id)
        self.promoted_model: str | None = None
        self._result: PromotionResult | None = None
        read_fields(self, _READERS, rendered=False)

    def execute(self, context: Context) -> dict[str, Any]:
        """Promote the challenger if it is better than the champion by the required amount."""
        try:
            result = self._decide_and_promote()
        except InvalidInputError as error:
            raise AirflowFailException(str(error)) from error  # a retry cannot succeed
        self.promoted_model, stored = result.model, result.to_json()
        outcome = "Promoted" if result.promoted else "Not promoted"
        self.log.info("%s: %s (%s)", outcome, result.reason, result.verdict)
        # Airflow emits an event for every outlet of a successful task, so remove the other outlets.
        self.outlets = [o for o in self.outlets if result.promoted and not _was_sent(context, o)]
        for outlet in (o for o in self.outlets if isinstance(o, Asset)):
            context["outlet_events"][outlet].extra.update(
                {key: stored[key] for key in ("model", "version", "previous_version", "reason")}
            )
        context["ti"].xcom_push(key=PROMOTION_XCOM, value=True)
        self._result = result
        send_promotion(self, result)
        return stored

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the version and, after a promotion, the champion, for Airflow's OpenLineage provider."""
        from paceline.airflow import lineage

        return lineage.describe_promotion(self, self._result)

    def _decide_and_promote(self) -> PromotionResult:
        read_fields(self, _READERS, rendered=True)
        evaluation = read_evaluation(self.evaluation)
        name, version = evaluation.model, evaluation.version
        registry = open_registry(self.registry, self.signing_conn_id)
        challenger = registry.version(name, version)
        _check_evaluated(challenger, evaluation, self.registry)
        champion = registry.champion(name)
        before = champion.version if champion else None

        def result(verdict: PromotionVerdict, reason: str, now: int | None, previous: int | None) -> PromotionResult:
            return PromotionResult(
                promoted=verdict in _PROMOTED,
                verdict=verdict,
                reason=reason,
                model=name,
                registry=self.registry,
                version=version,
                champion_version=now,
                previous_version=previous,
            )

        if before == version:
            reason = f"version {version} is already the champion"
            try:  # completes the promotion of a try that died before it had moved MLflow's alias
                previous = registry.promote(name, version, reason, expected_champion=before).previous
            except ChampionChangedError:
                return self._decide_and_promote()
            return result("already champion", reason, version, previous)
        evaluated = evaluation.champion_digest or (champion and champion.digest)
        if before != evaluation.champion_version or (champion and champion.digest != evaluated):
            other = " with other files" if before == evaluation.champion_version else ""
            reason = (
                f"the champion is now version {before}{other}; version {version} was compared with "
                f"{evaluation.champion_version or 'none'}"
            )
            return result("champion changed", reason, before, before)
        verdict, reason = judge(evaluation, self.min_improvement, self.confidence, self.minimum_samples)
        if evaluation.was_asked:
            reason += f"; approved by {evaluation.approved_by or 'the default answer'}"
        if verdict in _PROMOTED and champion and not self.allow_older and (older := _older(challenger, champion)):
            verdict, reason = "older data", older
        if verdict not in _PROMOTED:
            return result(verdict, reason, before, before)
        try:
            promotion = registry.promote(name, version, reason, expected_champion=before)
        except ChampionChangedError:
            return self._decide_and_promote()
        except ChampionHeldError as held:
            return result("champion held", f"{reason}, but expected {held.accepted}", before, before)
        return result(verdict, reason, version, promotion.previous)


def _check_evaluated(version: ModelVersion, evaluation: EvaluationResult, registry: str) -> None:
    """Raise InvalidInputError if a version has not the files that were scored."""
    known, place = evaluation.digest, evaluation.registry or registry
    if known != version.digest and (known is not None or place != registry):
        found = f"version {version.version} in {evaluation.registry}"
        accepted = f"the version that was scored; version {version.version} in {registry} has other files"
        raise InvalidInputError("evaluation", found, accepted)


def _was_sent(context: Context, outlet: object) -> bool:
    """Return whether this task instance has already emitted the outlet's event, before a user cleared the task."""
    from airflow.sdk.execution_time.context import InletEventsAccessor

    if not isinstance(outlet, Asset):
        return False
    ti, run_after = context["ti"], context["dag_run"].run_after
    events = InletEventsAccessor(asset_name=outlet.name, asset_uri=outlet.uri).after(run_after.isoformat())
    own = (ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
    sources = ((e.source_dag_id, e.source_run_id, e.source_task_id, e.source_map_index) for e in events)
    return own in sources


def _older(challenger: ModelVersion, champion: ModelVersion) -> str | None:
    """Return the reason for a challenger whose run covers older data than the champion's; ``None`` for another one."""
    try:
        own, other = (datetime.fromisoformat(str(one.lineage.get("data_until"))) for one in (challenger, champion))
        if own >= other:
            return None
    except (ValueError, TypeError):  # unknown, or not the times of runs
        return None
    own_until, other_until = (time.isoformat(timespec="seconds") for time in (own, other))
    return (
        f"version {challenger.version} is from a run for data until {own_until}, champion version {champion.version} "
        f"from one until {other_until}; allow_older=True promotes it nevertheless"
    )
