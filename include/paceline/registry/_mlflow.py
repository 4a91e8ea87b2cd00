"""``MlflowRegistry``: the model registry of an MLflow server.

MLflow numbers the versions of a model one after the other, even for concurrent requests. Registrations and promotions
rely on this order alone.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import EllipsisType
from typing import Any

from pydantic import JsonValue
from upath import UPath

from paceline.errors import InvalidInputError
from paceline.registry import _mlflow_runs as runs
from paceline.registry import storage
from paceline.registry._mlflow_promotions import (
    CHAMPION,
    HISTORY_SUFFIX,
    PromotionLog,
    create_model,
    missing_champion,
    tags_of,
)
from paceline.registry._mlflow_server import MlflowError, MlflowServer
from paceline.registry._signature import Signer
from paceline.registry.base import (
    DeletionMark,
    StoragePath,
    VersionNeededError,
    changes,
    check_champion,
    check_deletable,
    check_digest,
    check_model_dir,
    check_not_held,
    check_reference,
    continued_history,
    missing_version,
    read_reference,
)
from paceline.registry.manifest import (
    ModelVersion,
    Promotion,
    VersionSummary,
    check_contents,
    check_name,
    decode,
    is_name,
    read_manifest,
)

# Tags of a version: a digest of its registration key, the digest of its manifest, and its signature. MLflow assigns the
# number that the signature covers. So a writer first signs the manifest, and then the version with its number.
_KEY, _MANIFEST, _SIGNATURE = "paceline.key", "paceline.manifest", "paceline.signature"
_SIGNED_CONTENTS = "paceline.signed_contents"
_DELETING = "paceline.deleting"  # marks a version that is being deleted
_CHALLENGER = "challenger"
_LARGEST_VERSION = 2**31  # MLflow's database stores the number as a 32-bit integer


class MlflowRegistry:
    """A :class:`Registry` on an MLflow server.

    Each version belongs to a run of the experiment with the model's name. The run has the metrics; its artifacts are
    the model's files and a manifest. The aliases ``champion`` and ``challenger`` mark the champion and the newest other
    version, so ``models:/NAME@champion`` always loads the champion. The promotions are the versions of the registered
    model ``NAME.promotions``.

    A user may set the alias ``champion`` in MLflow; the version with the alias is then the champion. If the alias of
    the last promotion is missing, only a promotion or the alias itself names a champion again. Versions that
    other tools have registered have no digests. Without a signing key, they can be promoted and fetched.

    Parameters
    ----------
    url:
        URL of the server, for example ``http://localhost:5000``.
    auth:
        User name and password for HTTP basic authentication.
    headers:
        Headers of every request, for example ``{"Authorization": "Bearer ..."}``.
    verify:
        Whether to verify the server's certificate, or the path of a file with accepted certificates.
    open_path:
        Opens the URI of an artifact folder that the server does not serve itself, such as ``s3://...``.
    writer_timeout_s:
        Seconds after which the writer of an unfinished promotion is presumed dead. The next promotion of the same model
        waits that long before it completes the unfinished promotion.
    signing_key:
        As for ``FileRegistry``.
    patience_s:
        Seconds without a byte after which a call fails. By default, a call is repeated, for up to some minutes.

    Examples
    --------
    >>> MlflowRegistry("localhost:5000")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: url: got 'localhost:5000', expected the URL of an MLflow server, such as \
http://localhost:5000
    """

    def __init__(
        self,
        url: str,
        *,
        auth: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        verify: bool | str = True,
        open_path: Callable[[str], StoragePath] = UPath,
        writer_timeout_s: float = 60.0,
        signing_key: str | bytes | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._signer = Signer(signing_key)
        self._writer_timeout_s = writer_timeout_s
        self._server = MlflowServer(
            url, auth=auth, headers=headers, verify=verify, open_path=open_path, patience_s=patience_s
        )

    def check_connection(self) -> None:
        """Raise a PacelineError unless the server responds and accepts the credentials."""
        self._server.call("GET", "/registered-models/search", max_results=1)

    def register(
        self,
        model_dir: StoragePath,
        *,
        name: str,
        metrics: Mapping[str, float] | None = None,
        data_window: Mapping[str, JsonValue] | None = None,
        lineage: Mapping[str, JsonValue] | None = None,
        key: str | None = None,
        digest: str | None = None,
        reference: StoragePath | None = None,
    ) -> ModelVersion:
        """Copy the model in ``model_dir`` to the server as the next version, as :meth:`Registry.register` describes."""
        log = self._log(name)
        source, paths = check_model_dir(model_dir)
        window = None if reference is None else check_reference(reference)
        check_contents(metrics or {}, data_window=data_window or {}, lineage=lineage or {})
        create_model(self._server, name, "")
        identity = uuid.uuid4().hex if key is None else hashlib.sha256(key.encode()).hexdigest()
        found = self._find(name, identity) if key is not None else []
        if not found:
            run = runs.create_run(self._server, name)
            try:
                manifest = runs.fill_run(
                    self._server,
                    run,
                    source,
                    paths,
                    name=name,
                    metrics=dict(metrics or {}),
                    data_window=dict(data_window or {}),
                    lineage=dict(lineage or {}),
                    key=key,
                    digest=digest,
                    reference=window,
                )
            except BaseException:
                runs.discard_run(self._server, run)
                raise
            signed = self._signer.sign_contents(name, manifest)
            tags = {_KEY: identity, _MANIFEST: manifest} | ({_SIGNED_CONTENTS: signed} if signed else {})
            found = self._create_version(name, run, tags)
        version = self._sign(found[0], key)
        if (latest := log.latest()) and not latest.published:
            log.complete(latest)  # its writer may be dead and have no retry
        self._update_challenger(name)
        return version

    def version(self, name: str, version: int) -> ModelVersion:
        """Return a version; raise InvalidInputError if it does not exist or, with a signing key, is not signed."""
        if (found := self._get(check_name(name), version)) is not None:
            return found
        raise missing_version(name, version, reversed(self.numbers(name)))

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all versions, oldest first; with a signing key, only those that it has signed."""
        loaded = (self._load(version) for version in self._first_of_each_key(name))
        return [version for version in loaded if self._signer.is_valid(version)]

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of all versions, oldest first, also those of damaged and unsigned versions."""
        return [int(version["version"]) for version in self._first_of_each_key(name)]

    def models(self) -> list[str]:
        """Return the names of all models, sorted, also of those that only other tools have registered."""
        names = (model["name"] for model in self._server.registered_models())
        return sorted(name for name in names if is_name(name) and not name.endswith(HISTORY_SUFFIX))

    def summaries(self, name: str, newest: int) -> list[VersionSummary]:
        """Return the ``newest`` versions without their files, as :meth:`Registry.summaries` describes."""
        size = newest
        while True:  # until there are enough besides those that are being deleted
            found = self._server.search_versions(f"name = '{check_name(name)}'", newest=size)
            versions = [*_first_of_each_key(found)][-newest:]
            if len(versions) == newest or len(found) < size:
                break
            size *= 10
        return [_summarise(one) for one in reversed(versions)]

    def summary(self, name: str, version: int) -> VersionSummary | None:
        """Return one version without its files, as :meth:`Registry.summary` describes."""
        place = {"name": check_name(name), "version": version}
        exists = 0 < version < _LARGEST_VERSION
        found = self._server.call_if_found("GET", "/model-versions/get", **place) if exists else None
        if found is None or _DELETING in tags_of(found["model_version"]):
            return None
        return _summarise(found["model_version"])

    def history(self, name: str, *, newest: int | None = None) -> list[Promotion]:
        """Return all promotions, oldest first, or only the ``newest``.

        There is none for a champion that a user has chosen in MLflow.
        """
        log = self._log(name)
        return [*changes(entry.promotion for entry in log.entries())] if newest is None else log.newest(newest)

    def champion(self, name: str) -> ModelVersion | None:
        """Return the version with the alias ``champion``, or ``None`` before the first promotion.

        Raise InvalidInputError if the alias, or the version that was promoted last, has been deleted.
        """
        number = self.champion_number(name)
        if number is None:
            return None
        if (found := self._get(name, number)) is None:
            raise missing_champion(name, number)
        return found

    def champion_number(self, name: str) -> int | None:
        """Return the number of the version with the alias ``champion``, or ``None``. Raise the same errors."""
        return self._log(name).champion()

    def last_promotion(self, name: str) -> Promotion | None:
        """Return the newest promotion, or ``None``. A user may have chosen another champion in MLflow since."""
        latest = self._log(name).latest()
        return latest.promotion if latest else None

    def promote(
        self,
        name: str,
        version: int,
        reason: str,
        *,
        expected_champion: int | EllipsisType | None = ...,
        hold: bool = False,
    ) -> Promotion:
        """Make ``version`` the champion, as :meth:`Registry.promote` describes."""
        log = self._log(name)
        while True:
            latest = log.latest()
            if latest and not latest.published:
                log.complete(latest)
                continue
            self.version(name, version)  # after the latest promotion, as `delete` expects
            champion, last = log.aliases().get(CHAMPION), latest.promotion.version if latest else None
            if champion != version and _DELETING in self._tags(name, version):
                raise missing_version(name, version, reversed(self.numbers(name)))
            if champion is None and last is not None:
                if expected_champion is not ...:
                    raise missing_champion(name, last)
            elif champion != version:
                if latest and champion == last:  # else, a person has chosen another champion in MLflow
                    check_not_held(latest.promotion, version, expected_champion)
                check_champion(name, champion, expected_champion)
            is_same = latest and (latest.promotion.hold == hold or expected_champion is not ...)
            if latest and is_same and last == version and champion in (None, version):
                if champion is None:
                    log.publish(latest)
                self._update_challenger(name)
                return latest.promotion
            previous = last if champion in (None, version) else champion
            try:
                entry = log.append(version, previous, reason, hold=hold, seen=latest)
            except MlflowError:  # the version may have been deleted since
                self.version(name, version)
                raise
            if entry is not None:
                log.publish(entry)
                self._update_challenger(name)
                return entry.promotion

    def delete(
        self, name: str, version: int, *, check: Callable[[], None] | None = None, known: Sequence[Promotion] = ()
    ) -> None:
        """Delete a version and its run, as :meth:`Registry.delete` describes. ``mlflow gc`` removes the run's files.

        The order with promotions is that of ``FileRegistry``. A version with an alias that a person has set stays.
        """
        number = version if isinstance(version, int) and 0 < version < _LARGEST_VERSION else 0
        place = {"name": check_name(name), "version": str(number)}
        found = self._server.call_if_found("GET", "/model-versions/get", **place) if number else None
        if found is None:
            raise missing_version(name, version, reversed(self.numbers(name)))
        if _KEY not in tags_of(found["model_version"]):
            accepted = "a version that Paceline has registered; delete those of other tools in MLflow"
            raise InvalidInputError("version", version, accepted)
        mark, set_tag = DeletionMark(), {**place, "key": _DELETING}
        mark.check_replaces(tags_of(found["model_version"]).get(_DELETING), version)
        self._server.call("POST", "/model-versions/set-tag", {**set_tag, "value": mark.text})
        try:
            if check is not None:
                check()
            self._order_deletion(name, version, known)
            # MLflow stores tags unconditionally, so another process may have marked the version at the same time.
            if self._tags(name, version).get(_DELETING) != mark.text:
                raise InvalidInputError("version", version, "a version that no other process deletes; repeat it")
        except BaseException:
            if mark.may_remove(self._tags(name, version).get(_DELETING)):
                self._server.call_if_found("DELETE", "/model-versions/delete-tag", set_tag)
            raise
        run_id = found["model_version"].get("run_id")
        if run_id and len(self._server.search_versions(f"run_id = '{run_id}'")) == 1:  # MLflow can copy versions
            self._server.call_if_found("POST", "/runs/delete", {"run_id": run_id})
        self._server.call_if_found("DELETE", "/model-versions/delete", place)
        self._update_challenger(name)

    def _order_deletion(self, name: str, version: int, known: Sequence[Promotion]) -> None:
        """Return when no promotion can choose the marked version any more, else raise an error."""
        log = self._log(name)
        while True:
            latest = log.latest()
            if latest and not latest.published:
                log.complete(latest)
                continue
            check_deletable(name, version, log.champion(), continued_history(known, changes(log.newest_first())))
            named = [alias for alias, number in log.aliases().items() if number == version and alias != _CHALLENGER]
            if named:
                raise VersionNeededError("version", version, f"a version without the alias {named[0]!r}")
            if latest and log.repeat(latest):
                return

    def unfinished(self, name: str, *, known: Collection[int] = ()) -> list[int]:
        """Return the numbers of the versions whose deletion was interrupted; one request returns all of them."""
        found = self._server.search_versions(f"name = '{check_name(name)}'")
        return [int(version["version"]) for version in found if _DELETING in tags_of(version)]

    def _tags(self, name: str, version: int) -> dict[str, str]:
        found = self._server.call_if_found("GET", "/model-versions/get", name=name, version=version)
        return tags_of(found["model_version"]) if found else {}

    def uri(self, version: ModelVersion) -> str:
        """Return the URI with which MLflow's clients load a version."""
        return f"models:/{version.name}/{version.version}"

    def fetch(self, version: ModelVersion, destination: Path) -> Path:
        """Copy the files of a version into the local folder ``destination``, as :meth:`Registry.fetch` describes.

        A version that another tool has registered has no digests to check.
        """
        self._signer.check(version)
        folder = runs.artifact_folder(self._server, version.name, version.version)
        with storage.staged(destination, lambda: self.versions(version.name)) as target:
            for path, record in version.files.items():
                place = f"{folder}/{path}"
                try:
                    sha256 = self._server.read(folder, path, target)
                except FileNotFoundError:
                    raise InvalidInputError(place, "no file", "the file named in the manifest") from None
                check_digest(place, sha256, record.sha256 or sha256)
                if record.executable:
                    storage.make_executable(target / path)
        return destination

    def fetch_reference(self, version: ModelVersion, folder: Path) -> Path | None:
        """Copy the reference of a version into ``folder``, as :meth:`Registry.fetch_reference` describes."""
        self._signer.check(version)
        if (stored := version.reference) is None:
            return None
        model = runs.artifact_folder(self._server, version.name, version.version)
        home = model.removesuffix(f"/{runs.MODEL_FOLDER}")

        def read(target: UPath, name: str) -> str:
            return self._server.read(home, stored.path, target, name, size_bytes=stored.size_bytes)

        return read_reference(stored, f"{home}/{stored.path}", folder, read)

    def _create_version(self, name: str, run: Mapping[str, Any], tags: Mapping[str, str]) -> list[dict[str, Any]]:
        """Create a version from a run. Return all versions with the same key; the first is the valid one."""
        body = {
            "name": name,
            "source": f"{run['artifact_uri']}/{runs.MODEL_FOLDER}",
            "run_id": run["run_id"],
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        }

        def find() -> dict[str, Any] | None:
            own = [version for version in self._find(name, tags[_KEY]) if version["run_id"] == run["run_id"]]
            return {"model_version": own[0]} if own else None

        self._server.create("/model-versions/create", body, find)
        found = self._find(name, tags[_KEY])
        first = found[0]
        for version in found[1:]:
            if version["run_id"] == run["run_id"]:
                self._server.call_if_found(
                    "DELETE", "/model-versions/delete", {"name": name, "version": version["version"]}
                )
        if first["run_id"] != run["run_id"]:
            runs.discard_run(self._server, run)
        return found

    def _first_of_each_key(self, name: str) -> Iterable[dict[str, Any]]:
        """Return the server's descriptions of all versions, without the duplicates of concurrent writers."""
        return _first_of_each_key(self._server.search_versions(f"name = '{check_name(name)}'"))

    def _get(self, name: str, version: int) -> ModelVersion | None:
        """Return a version, or ``None`` if it does not exist."""
        if not isinstance(version, int) or not 0 < version < _LARGEST_VERSION:
            return None
        found = self._server.call_if_found("GET", "/model-versions/get", name=name, version=version)
        if found is None:
            return None
        loaded = self._load(found["model_version"])
        self._signer.check(loaded)
        return loaded

    def _find(self, name: str, identity: str) -> list[dict[str, Any]]:
        found = self._server.search_versions(f"name = '{name}'", f"tags.`{_KEY}` = '{identity}'")
        return [version for version in found if _DELETING not in tags_of(version)]

    def _load(self, version: Mapping[str, Any]) -> ModelVersion:
        """Return a version with its manifest."""
        tags = tags_of(version)
        known = {
            "name": version["name"],
            "version": int(version["version"]),
            "created_at": int(version["creation_timestamp"]) / 1000,
            "signature": tags.get(_SIGNATURE),
        }
        if _MANIFEST not in tags:
            if _KEY in tags:  # not a version of another tool, which has no digests
                field = f"tag {_MANIFEST} of {known['name']} version {known['version']}"
                raise InvalidInputError(field, None, f"the SHA-256 of {runs.MANIFEST_FILE}, as Paceline has stored it")
            described = {**known, **runs.describe_foreign(self._server, version)}
            return decode(ModelVersion, b"{}", f"{known['name']} {known['version']} in MLflow", **described)
        source = str(version["source"])
        if source.startswith("models:/"):  # MLflow has copied the version from another model
            source = runs.artifact_folder(self._server, version["name"], int(version["version"]))
        folder = source.removesuffix(f"/{runs.MODEL_FOLDER}")
        place = f"{folder}/{runs.MANIFEST_FILE}"
        try:
            manifest = self._server.read_bytes(folder, runs.MANIFEST_FILE)
        except FileNotFoundError:
            raise InvalidInputError(place, "no file", f"the manifest of {known['name']} {known['version']}") from None
        check_digest(place, hashlib.sha256(manifest).hexdigest(), tags[_MANIFEST])
        return read_manifest(manifest, place, **known)

    def _sign(self, found: Mapping[str, Any], key: str | None) -> ModelVersion:
        """Return a registered version. Sign it if its writer, which has signed the contents, has died before that.

        Another writer may have created the version with the tags of this registration and the manifest of another one.
        """
        version, tags = self._load(found), tags_of(found)
        if version.key != key:
            field = f"key of {version.name} version {version.version}"
            raise InvalidInputError(field, version.key, f"{key!r}, as in its tag")
        signed = self._signer.sign(version)
        if _SIGNATURE not in tags and self._signer.has_signed_contents(
            version.name, tags.get(_MANIFEST, ""), tags.get(_SIGNED_CONTENTS, "")
        ):
            place = {"name": version.name, "version": str(version.version)}
            self._server.call(
                "POST", "/model-versions/set-tag", {**place, "key": _SIGNATURE, "value": signed.signature}
            )
            return signed
        self._signer.check(version)
        return version

    def _update_challenger(self, name: str) -> None:
        """Set the alias ``challenger`` to the newest version after the champion, or remove it if there is none.

        Concurrent writers may set it, too, so read the versions again after each change.
        """
        log = self._log(name)
        while True:
            aliases = log.aliases()
            newest = max(
                (int(one["version"]) for one in self._server.search_versions(f"name = '{name}'", newest=1)), default=0
            )
            wanted = newest if newest > aliases.get(CHAMPION, 0) else None
            if aliases.get(_CHALLENGER) == wanted:
                return
            if wanted is None:
                self._server.call_if_found("DELETE", "/registered-models/alias", {"name": name, "alias": _CHALLENGER})
            else:
                # The version may be a duplicate that its writer has removed in the meantime.
                body = {"name": name, "alias": _CHALLENGER, "version": str(wanted)}
                self._server.call_if_found("POST", "/registered-models/alias", body)

    def _log(self, name: str) -> PromotionLog:
        return PromotionLog(self._server, check_name(name), self._writer_timeout_s)


def _summarise(found: Mapping[str, Any]) -> VersionSummary:
    """Return a version as the server describes it, without what its manifest says."""
    created_at = datetime.fromtimestamp(int(found["creation_timestamp"]) / 1000, timezone.utc)
    return VersionSummary(version=int(found["version"]), created_at=created_at, signed=_SIGNATURE in tags_of(found))


def _first_of_each_key(versions: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Return the versions that are not being deleted, without the duplicates of concurrent writers."""
    first: dict[str, dict[str, Any]] = {}
    for version in versions:
        if _DELETING not in tags_of(version):
            first.setdefault(tags_of(version).get(_KEY, version["version"]), version)
    return first.values()
