"""``ApproveOperator``: asks a person whether a challenger may become the champion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException

from paceline.airflow.arguments import read_fields
from paceline.airflow.tasks import CheckedTask
from paceline.airflow.values import Reader, optional_text
from paceline.contract import EvaluationResult, ShownEvaluation
from paceline.errors import InvalidInputError

from ._evaluation import check_evaluation, read_evaluation
from .improvement import describe_doubts, describe_interval
from .links import ModelLink

_READERS: Mapping[str, Reader] = {"subject": optional_text, "body": optional_text}
_ASKED = "paceline_asked"  # XCom, and key of the task's state store, with the evaluation that the question shows


class ApproveOperator(CheckedTask, ApprovalOperator):
    """A task that asks a person whether the challenger of an evaluation may be promoted.

    The question appears in Airflow under *Browse, Required Actions* with the scores of both models. The answer is for
    the version in the question, even if the evaluation runs again before the answer. After *Approve*,
    ``PromoteOperator`` still promotes only a better challenger. After *Reject*, the downstream tasks are skipped.

    Parameters
    ----------
    evaluation:
        The result of ``EvaluateOperator``: ``evaluate.output``. (templated)
    subject, body:
        Title and text of the question, in Markdown. By default, the version and a table of the scores. (templated)
    defaults:
        The answer after ``response_timeout``: ``"Reject"``, ``"Approve"``, or None, with which the task then fails.
    **kwargs:
        Arguments of Airflow's ``ApprovalOperator``: ``response_timeout``, ``assigned_users``, ``notifiers``, ...

    Returns
    -------
    dict
        After *Approve*, the evaluation, with ``approved_by`` (the person's name, or None for the answer after the
        timeout): the ``evaluation`` of ``PromoteOperator``. After *Reject*, the answer.

    Examples
    --------
    >>> from datetime import timedelta
    >>> from paceline.operators import ApproveOperator
    >>> approve = ApproveOperator(
    ...     task_id="approve",
    ...     evaluation="{{ ti.xcom_pull('evaluate') }}",
    ...     response_timeout=timedelta(hours=8),
    ... )
    >>> approve.defaults
    ['Reject']
    """

    template_fields: Sequence[str] = (*ApprovalOperator.template_fields, "evaluation")
    template_fields_renderers: ClassVar[dict[str, str]] = {"evaluation": "json", "body": "md"}
    returns_evaluation = True
    operator_extra_links = (ModelLink(),)
    ui_color = "#fde8f4"

    def __init__(
        self,
        *,
        evaluation: Any,
        subject: Any = None,
        body: Any = None,
        defaults: str | None = ApprovalOperator.REJECT,
        **kwargs: Any,
    ) -> None:
        super().__init__(subject=subject, body=body, defaults=defaults, **kwargs)
        check_evaluation(evaluation)
        self.evaluation = evaluation
        self.promoted_model: str | None = None
        read_fields(self, _READERS, rendered=False)

    def execute(self, context: Context) -> Any:
        """Ask the question and wait for the answer."""
        try:
            read_fields(self, _READERS, rendered=True)
            evaluation = read_evaluation(self.evaluation)
        except InvalidInputError as error:
            raise AirflowFailException(str(error)) from error  # a retry cannot succeed
        evaluation = _shown_evaluation(context, evaluation)
        self.subject = self.subject or f"Promote {evaluation.model} version {evaluation.version}?"
        self.body = self.body or _describe(evaluation)
        self.promoted_model = evaluation.model
        context["ti"].xcom_push(key=_ASKED, value=evaluation.to_json())
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Return the evaluation of the question after *Approve*; skip the next tasks after *Reject*."""
        answer = super().execute_complete(context=context, event=event)
        if answer["chosen_options"] != [self.APPROVE]:
            return answer
        ti = context["ti"]
        asked = ti.xcom_pull(task_ids=ti.task_id, key=_ASKED, map_indexes=ti.map_index)
        person = answer.get("responded_by_user")
        approved = {"approved_by": person["name"] if person else None}
        return EvaluationResult.model_validate(asked).model_copy(update=approved).to_json()


def _shown_evaluation(context: Context, evaluation: EvaluationResult) -> EvaluationResult:
    """Return the evaluation that the pages show: that of the first try with this task instance's id.

    Airflow stores one question for each id, does not replace it, and may run a second try with the same id.
    """
    store, ti_id = context["task_state_store"], str(context["ti"].id)
    stored = ShownEvaluation.read(store.get(_ASKED))
    if stored is not None and stored.ti_id == ti_id:
        return stored.evaluation
    store.set(_ASKED, ShownEvaluation(ti_id=ti_id, evaluation=evaluation).to_json())
    return evaluation


def _describe(evaluation: EvaluationResult) -> str:
    """Return the scores of both models as a table, the deciding metric first.

    >>> print(_describe(EvaluationResult(
    ...     model="m", metric="auc", challenger=0.8, champion=0.7, version=2, champion_version=1, improvement=0.1)))
    | | version 2 | champion: version 1 |
    |---|---|---|
    | **auc** | 0.8 | 0.7 |
    """
    metric, champion = evaluation.metric, evaluation.champion_version
    new = {metric: evaluation.challenger, **(evaluation.challenger_metrics or {})}
    old = {metric: evaluation.champion, **(evaluation.champion_metrics or {})}
    column = "no champion" if champion is None else f"champion: version {champion}"
    lines = [f"| | version {evaluation.version} | {column} |", "|---|---|---|"]
    for name in new:
        label = f"**{name}**" if name == metric else name
        lines.append(f"| {label} | {_number(new[name])} | {_number(old.get(name))} |")
    if summary := evaluation.improvements:
        lines += ["", *(f"- {line}" for line in (describe_interval(summary), *describe_doubts(summary)))]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
