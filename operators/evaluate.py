"""``EvaluateOperator``: scores the champion and the challenger on the same data, and registers the challenger."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException
from upath import UPath

from paceline.airflow.arguments import (
    local_copies,
    mapping,
    number,
    optional_conn_id,
    path_or_url,
    read_fields,
    registry_location,
)
from paceline.airflow.metrics import send_evaluation
from paceline.airflow.places import open_registry, storage_path
from paceline.airflow.values import Reader
from paceline.contract import EVALUATION_XCOM, Comparison, EvaluationResult, Improvements
from paceline.errors import PERMANENT_ERRORS, InvalidInputError, PacelineError, TrainingFailedError
from paceline.registry import ModelChangedError, ModelVersion, Registry
from paceline.registry.manifest import check_name
from paceline.registry.storage import digest_of
from paceline.runtime.checks import check_devices
from paceline.runtime.temporary import TemporaryFolder

from ._dags_test import is_dags_test
from ._deferral import UNNAMED_ENGINE, read_deferrable, time_limit, trigger_failure
from ._direction import check_metric, direction
from ._holdout import HoldOut
from ._identity import job_labels
from ._job import JobOperator
from ._repeats import repeated_lines
from ._scoring import ScoringJobs
from ._window import changed_file, copy_reference
from .improvement import ResampleCollector, describe_doubts, describe_interval, summarise
from .links import ModelLink

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context


def _nonempty_mapping(field: str, value: object) -> dict[str, Any]:
    entries = mapping(field, value)
    if not entries:
        raise InvalidInputError(field, value, "at least one file or folder with hold-out data")
    return entries


def _number_of_cores(field: str, value: object) -> float:
    cores = number(field, value, "a number of cores greater than 0")
    check_devices(cores, field)
    return cores


class EvaluateOperator(JobOperator):
    """A task that scores the challenger and the champion with the user's script on the same data.

    The script runs once for each model, sandboxed like a training job. It reads the model from
    ``$PACELINE_INPUT/model`` and the data from ``$PACELINE_INPUT/data``, and reports its scores with
    ``paceline.train.report(auc=..., ...)``. The task then registers the challenger as the next version of the
    model. A retry of the task with the same challenger returns the same version.

    If the script reports ``metric`` with :func:`paceline.train.resampled`, the result also states how certain the
    improvement is (paired bootstrap), and ``PromoteOperator`` can require a ``confidence``.

    Parameters
    ----------
    model:
        Name of the model in the registry. (templated)
    registry:
        Path or object storage URL of the registry, or ``mlflow://CONN_ID`` for that of an MLflow server. (templated)
    challenger:
        Path or URL of the trained model, for example ``"{{ ti.xcom_pull('train')['model'] }}"``. (templated)
    data:
        Hold-out data, as ``{name below $PACELINE_INPUT/data: local path or object storage URL}``. (templated)
    metric:
        Name of the score to compare.
    greater_is_better:
        Whether a greater score is better: ``False`` for losses, errors and costs. Optional for the usual scores, such
        as ``"auc"``, ``"val_accuracy"``, ``"f1"``, ``"r2"`` and ``"ndcg@5"``, of which a greater value is better.
    data_window:
        The challenger's training data; stored with the version. If it contains the ``source`` of the data (a
        query or a file), as ``drift.output["window"]`` does, later drift checks can compare new data with this data
        (``reference="champion"``). The registry keeps a copy of a file of at most 1 GiB. If the file cannot be copied,
        the task warns, and later checks read the file itself. If the checked file has changed since, the task warns,
        and the version's lineage has ``data_window_changed``. (templated)
    lineage:
        Additional provenance of the challenger (drift report, training summary, ...). The operator adds the DAG, run,
        task and evaluation. (templated)
    signing_conn_id:
        Id of a connection whose password is a key of at least 32 bytes. The task then signs the version that it
        registers, and fails if this key has not signed the champion.
    devices:
        Cores for the script. (templated)
    deferrable:
        Whether the triggerer waits for the end of a script that runs longer than 20 s: the task then has a worker slot
        only while it starts the script for a model, and to read its scores. Default: ``[operators]
        default_deferrable``.
    **kwargs:
        Arguments of :class:`~paceline.operators._job.JobOperator`: ``script`` or ``command``,
        ``files``, ``runtime``, ``image``, ``docker_conn_id``, ...

    Returns
    -------
    dict
        ``version`` (of the challenger), ``challenger`` and ``champion`` (scores), ``improvement``, ``improvements`` on
        resamples and more, see :class:`~paceline.contract.EvaluationResult`. Without a champion, its values are None.

    Examples
    --------
    >>> from paceline.operators import EvaluateOperator
    >>> EvaluateOperator(
    ...     task_id="evaluate",
    ...     model="../flights",
    ...     registry="s3://models",
    ...     challenger="{{ ti.xcom_pull('train')['model'] }}",
    ...     data={"holdout.csv": "s3://data/{{ ds }}.csv"},
    ...     script="evaluate.py",
    ...     metric="auc",
    ... )
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: model: got '../flights', expected 1 to 128 letters, digits, '.', '_' or '-', \
the first a letter or digit (task 'evaluate')
    """

    template_fields: Sequence[str] = (
        *JobOperator.template_fields,
        "model",
        "registry",
        "challenger",
        "data",
        "data_window",
        "lineage",
        "devices",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **JobOperator.template_fields_renderers,
        "data": "json",
        "data_window": "json",
        "lineage": "json",
    }
    readers: ClassVar[Mapping[str, Reader]] = {
        **JobOperator.readers,
        "model": lambda field, value: check_name(value, field=field),
        "registry": registry_location,
        "challenger": path_or_url,
        "data": _nonempty_mapping,
        "data_window": mapping,
        "lineage": mapping,
        "devices": _number_of_cores,
    }
    returns_evaluation = True
    operator_extra_links = (ModelLink(),)
    ui_color = "#fff3d6"

    def __init__(
        self,
        *,
        model: str,
        registry: str,
        challenger: Any,
        data: Mapping[str, str],
        metric: str,
        greater_is_better: bool | None = None,
        data_window: Any = None,
        lineage: Any = None,
        signing_conn_id: str | None = None,
        devices: float | str = 1.0,
        deferrable: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model
        self.registry = registry
        self.challenger = challenger
        self.data: Any = data
        self.metric = check_metric(metric)
        self.greater_is_better = greater_is_better
        self._greater_is_better = direction(metric, greater_is_better)
        self.data_window = data_window
        self.lineage = lineage
        self.signing_conn_id = optional_conn_id("signing_conn_id", signing_conn_id)
        self.devices: Any = devices
        self._defers_by_default = deferrable is None
        self.deferrable = read_deferrable(deferrable)
        self._jobs: ScoringJobs | None = None
        self._earlier: Mapping[str, Any] = {}  # of an earlier process of this try, which the triggerer has continued
        self._result: EvaluationResult | None = None
        self._killed = threading.Event()
        read_fields(self, self.readers, rendered=False)

    def execute(self, context: Context) -> dict[str, Any]:
        """Score both models, compare the scores and register the challenger."""
        self._killed.clear()
        try:
            self._result = self._evaluate(context)
        except PERMANENT_ERRORS as error:
            raise AirflowFailException(self.describe(error)) from error  # a retry cannot succeed
        except PacelineError as error:
            if self._killed.is_set():
                raise AirflowException("The task was stopped; its job has been removed") from error
            raise AirflowException(self.describe(error)) from error
        send_evaluation(self, self._result)
        return self._result.to_json()

    def execute_continued(self, context: Context, event: dict[str, Any], **earlier: Any) -> dict[str, Any]:
        """Continue after :class:`~paceline.operators.triggers.ScoringTrigger`, which says why in its ``event``.

        All is done again, except that no script runs again on the same files.
        """
        self._earlier = {**earlier, "reason": event["reason"]}
        return self.execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue after a deferral, also if the triggerer could not run the trigger."""
        if (failure := trigger_failure(next_method, next_kwargs or {})) is not None:
            self.log.error("A worker process waits for the script, because the trigger has failed:\n%s", failure)
            return self.execute_continued(context, {"reason": "error"})
        return super().resume_execution(next_method, next_kwargs, context)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the models, the data and the registered version, for Airflow's OpenLineage provider."""
        from paceline.airflow import lineage

        return lineage.describe_evaluation(self, self._result)

    def on_kill(self) -> None:
        """Stop and remove the job, in a thread because Airflow calls this method in a signal handler."""
        self._killed.set()
        if self._jobs is not None:
            cleanup = threading.Thread(target=self._jobs.remove, name="paceline-kill", daemon=True)
            cleanup.start()
            cleanup.join(4.0)  # Airflow kills the task 5 s after its signal

    def _evaluate(self, context: Context) -> EvaluationResult:
        self.read_templates(context)
        registry = open_registry(self.registry, self.signing_conn_id)
        folder = storage_path(self.challenger)
        if not folder.is_dir() or next(folder.iterdir(), None) is None:
            accepted = "an existing folder with a model; a training script saves it into the folder $PACELINE_OUTPUT"
            raise InvalidInputError("challenger", self.challenger, accepted)
        jobs = self._jobs = self._open_jobs(context)
        with TemporaryFolder() as scratch, jobs:
            trained = local_copies("challenger", {"model": self.challenger}, scratch / "trained")["model"]
            digest = digest_of(UPath(trained), "challenger")
            key = _registration_key(context, digest)
            champion = self._find_champion(registry, key)
            if (changed := changed_file(self.data_window)) is not None:
                self.log.warning(
                    "%s has changed since its drift check: data_window may not be the training data", changed
                )
            reference = copy_reference(self.data_window, scratch, self.log)
            holdout = HoldOut(self.data, self.inputs, scratch, self.command_and_files()[1].values())
            new, resamples = self._score(context, jobs, "challenger", trained, holdout)
            old: dict[str, float] | None = None
            improvements: Improvements | None = None
            if champion is not None:
                fetched = registry.fetch(champion, scratch / "champion")
                role = f"champion-{champion.version}"
                old, others = self._score(context, jobs, role, fetched, holdout)
                improvements = summarise(resamples, others, greater_is_better=self._greater_is_better)
                if improvements is not None:
                    repeated = 0 if resamples.groups else repeated_lines(holdout.paths.values())
                    improvements = improvements.model_copy(update={"repeated_lines": repeated})
            if (replaced := holdout.changed_file()) is not None:
                raise TrainingFailedError(f"{replaced} has changed while the models were scored: score them again")
            verdict = self._compare(new, old, champion)
            doubts = {} if changed is None else {"data_window_changed": changed}
            try:
                version = registry.register(
                    trained,
                    name=self.model,
                    metrics=new,
                    data_window=self.data_window,
                    lineage={**self.lineage, **_task_fields(context), **doubts, "evaluation": verdict.to_json()},
                    key=key,
                    digest=digest,
                    reference=reference,
                )
            except ModelChangedError as error:  # a retry can succeed
                raise TrainingFailedError(f"{self.challenger} has changed while it was registered") from error
        self._log_verdict(version, verdict)
        if improvements is not None:
            self.log.info("%s", describe_interval(improvements))
            for doubt in describe_doubts(improvements):
                self.log.warning("%s", doubt)
        context["ti"].xcom_push(key=EVALUATION_XCOM, value=True)
        return EvaluationResult(
            model=self.model,
            registry=self.registry,
            version=version.version,
            digest=version.digest,
            greater_is_better=self._greater_is_better,
            improvements=improvements,
            challenger_metrics=new,
            champion_metrics=old,
            **dict(verdict),
        )

    def _find_champion(self, registry: Registry, key: str) -> ModelVersion | None:
        """Return the champion, or the previous champion if an earlier try's challenger is now the champion."""
        champion = registry.champion(self.model)
        if champion is None or champion.key != key:
            return champion
        for promotion in reversed(registry.history(self.model)):
            with suppress(InvalidInputError):  # a version may have been deleted in MLflow
                version = registry.version(self.model, promotion.version)
                if version.key != key:
                    return version
        return None

    def _open_jobs(self, context: Context) -> ScoringJobs:
        """Return the scoring jobs of this try."""
        chosen = self._earlier.get("runtime")
        settings = next((one for one in self.possible_runtimes() if one.name == chosen), None) or self.choose_runtime()
        return ScoringJobs(
            self.open_runtime(settings),
            settings,
            lambda: job_labels(context),
            self.lease_s,
            self.log,
            ends_at=time_limit(self, context),
            defers=self._defers(),
            **{name: self._earlier[name] for name in ("scored", "reason") if name in self._earlier},
        )

    def _defers(self) -> bool:
        if not self.deferrable or is_dags_test():
            return False
        if self._defers_by_default and not self.runtime_settings.names_engine:
            self.log.info("A worker process waits for the script, because %s", UNNAMED_ENGINE)
            return False
        return True

    def _score(
        self, context: Context, jobs: ScoringJobs, role: str, model: Path, holdout: HoldOut
    ) -> tuple[dict[str, float], ResampleCollector]:
        """Run the script on one model and return its scores and the resamples of the metric."""
        if self._killed.is_set():
            raise TrainingFailedError("the task was stopped")
        inputs = {"model": model, **{f"data/{name}": path for name, path in holdout.paths.items()}}
        spec = self.job_spec(context, holdout.inputs, self.devices, inputs=inputs, suffix=f"-{role}")
        found = jobs.score(spec, self.metric, role)
        if found is None:
            self.log.info("The triggerer waits for the scores of the %s", role)
            self.defer(trigger=jobs.trigger(spec), method_name="execute_continued", kwargs=jobs.state)
        scores, resamples = found
        self.log.info("The %s: %s", role, ", ".join(f"{name} {score:.6g}" for name, score in scores.items()))
        return scores, resamples

    def _compare(
        self, new: Mapping[str, float], old: Mapping[str, float] | None, champion: ModelVersion | None
    ) -> Comparison:
        improvement = None
        if old is not None:
            improvement = new[self.metric] - old[self.metric]
            improvement = improvement if self._greater_is_better else -improvement
        return Comparison(
            metric=self.metric,
            challenger=new[self.metric],
            champion=None if old is None else old[self.metric],
            champion_version=None if champion is None else champion.version,
            champion_digest=None if champion is None else champion.digest,
            better=improvement is None or improvement > 0,
            improvement=improvement,
        )

    def _log_verdict(self, version: ModelVersion, verdict: Comparison) -> None:
        if verdict.champion_version is None:
            self.log.info("%s has no champion yet; version %d has %s %.6g", *_challenger_fields(version, verdict))
        else:
            self.log.info(
                "%s version %d: %s %.6g, against %.6g for champion version %d: %s",
                *_challenger_fields(version, verdict),
                verdict.champion,
                verdict.champion_version,
                "better" if verdict.better else "not better",
            )


def _challenger_fields(version: ModelVersion, verdict: Comparison) -> tuple[str, int, str, float]:
    return version.name, version.version, verdict.metric, verdict.challenger


def _registration_key(context: Context, digest: str) -> str:
    """Return the same key for every try, from the ids of the task instance and a digest of the model."""
    ti = context["ti"]
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}/{digest}"


def _task_fields(context: Context) -> dict[str, Any]:
    """Return the origin of a version: the task instance, and the time up to which its run covers the data."""
    ti, run = context["ti"], context.get("dag_run")
    until = run and (run.data_interval_end or run.logical_date or run.run_after)
    return {
        **{"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index},
        **({"data_until": until.isoformat()} if until else {}),
    }
