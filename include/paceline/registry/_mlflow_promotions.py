"""``PromotionLog``: the promotions of a model, as versions of a registered model of their own on an MLflow server.

MLflow can neither change an alias conditionally nor keep its history, but it numbers versions one after the other.
So each promotion is first appended as the next version of ``NAME.promotions``, with the number of the last promotion
that its writer has seen. The new promotion is void if another one lies between the two. The writer of a valid promotion
then moves the alias.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from paceline.errors import InvalidInputError
from paceline.registry._mlflow_server import ALREADY_EXISTS, NOT_FOUND, MlflowError, MlflowServer
from paceline.registry.base import changes
from paceline.registry.manifest import Promotion

CHAMPION = "champion"

HISTORY_SUFFIX = ".promotions"

_VERSION, _PREVIOUS, _SEEN = "paceline.version", "paceline.previous", "paceline.seen"
_ATTEMPT, _PUBLISHED, _HOLD = "paceline.attempt", "paceline.published", "paceline.hold"
_PROMOTED_AT = "paceline.promoted_at"  # of a repeated promotion, in ms
_POLL_S = 0.2
_RECENT = 20  # versions of the log that most calls read
_MOST_SHOWN = 10_000  # versions of the log that a server reads for its pages
_LONGEST_REASON = 5000  # characters that a description can have in all of MLflow's databases


@dataclass(frozen=True)
class LoggedPromotion:
    """A valid promotion, its number in the log, and whether its writer has moved the alias."""

    number: int
    promotion: Promotion
    published: bool


class PromotionLog:
    """The promotions and aliases of the model ``name``.

    The writer of a promotion is presumed dead if it has not moved the alias after ``writer_timeout_s`` seconds.
    """

    def __init__(self, server: MlflowServer, name: str, writer_timeout_s: float) -> None:
        if name.endswith(HISTORY_SUFFIX):
            raise InvalidInputError(
                "name", name, f"a name that does not end in {HISTORY_SUFFIX}, which marks the history of a model"
            )
        self._server = server
        self._name = name
        self._log = f"{name}{HISTORY_SUFFIX}"
        self._writer_timeout_s = writer_timeout_s

    def entries(self) -> list[LoggedPromotion]:
        """Return the valid promotions, oldest first."""
        return self._replay(self._server.search_versions(f"name = '{self._log}'"))

    def newest(self, number: int) -> list[Promotion]:
        """Return the newest promotions without repetitions, oldest first: those of the newest 10,000 versions."""
        found: list[Promotion] = []
        for size in (_RECENT, _MOST_SHOWN):
            versions = self._newest_versions(size)
            found = [*changes(entry.promotion for entry in self._valid(versions, size))]
            if len(versions) < size or len(found) >= number:
                break
        return found[-number:]

    def newest_first(self) -> Iterator[Promotion]:
        """Yield the promotions, newest first: the newest from one request, and then all others from a second one."""
        recent = self.recent()
        yield from (entry.promotion for entry in reversed(recent))
        yield from (entry.promotion for entry in reversed(self.entries()) if entry.number < recent[0].number)

    def latest(self) -> LoggedPromotion | None:
        """Return the newest valid promotion, or ``None``."""
        recent = self.recent()
        return recent[-1] if recent else None

    def aliases(self) -> dict[str, int]:
        """Return the aliases of the model and their versions."""
        found = self._server.registered_model(self._name)
        aliases = found.get("aliases", []) if found else []
        return {alias["alias"]: int(alias["version"]) for alias in aliases}

    def champion(self) -> int | None:
        """Return the number of the champion, or ``None`` before the first promotion.

        Raise InvalidInputError if the alias was removed, by itself or with its version.
        """
        latest = self.latest()  # first, because the writer of a published promotion has already set the alias
        alias = self.aliases().get(CHAMPION)
        if latest and not latest.published and alias in (None, latest.promotion.previous):
            return latest.promotion.version  # the alias is about to move
        if latest and alias is None:
            raise missing_champion(self._name, latest.promotion.version)
        return alias

    def append(
        self, version: int, previous: int | None, reason: str, *, hold: bool, seen: LoggedPromotion | None
    ) -> LoggedPromotion | None:
        """Append a promotion. Return ``None`` if a concurrent promotion came first.

        Parameters
        ----------
        version, previous:
            The new champion and the previous champion.
        reason:
            Stored as the description; at most 5,000 characters.
        hold:
            Whether only a person may replace the new champion.
        seen:
            The newest promotion at the time of the decision.
        """
        return self._append(version, previous, reason, seen, {_HOLD: "true"} if hold else {})

    def repeat(self, latest: LoggedPromotion) -> bool:
        """Append the newest promotion once more. Return ``False`` if a concurrent promotion came first."""
        promotion = latest.promotion
        promoted_at = {_PROMOTED_AT: str(round(promotion.promoted_at.timestamp() * 1000)), _PUBLISHED: "true"}
        hold = {_HOLD: "true"} if promotion.hold else {}
        tags = {**promoted_at, **hold}
        return self._append(promotion.version, promotion.previous, promotion.reason, latest, tags) is not None

    def _append(
        self, version: int, previous: int | None, reason: str, seen: LoggedPromotion | None, more: Mapping[str, str]
    ) -> LoggedPromotion | None:
        self._create_log()
        attempt = uuid.uuid4().hex
        tags = {
            _VERSION: str(version),
            _PREVIOUS: "" if previous is None else str(previous),
            _SEEN: str(seen.number if seen else 0),
            _ATTEMPT: attempt,
            **more,
        }
        body = {
            "name": self._log,
            "source": f"models:/{self._name}/{version}",
            "description": reason[:_LONGEST_REASON],
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        }
        created = self._server.create("/model-versions/create", body, find=lambda: self._find(attempt))
        number = int(created["model_version"]["version"])
        # The promotion may already be followed by others, because another writer has published it.
        valid = self.recent()
        if not valid or valid[0].number > number:
            valid = self.entries()
        if found := [entry for entry in valid if entry.number == number]:
            return found[0]
        self._server.call_if_found("DELETE", "/model-versions/delete", {"name": self._log, "version": str(number)})
        return None

    def complete(self, entry: LoggedPromotion) -> None:
        """Wait until the writer of the newest promotion has published it; if the writer is dead, publish it.

        If the promoted version has been deleted, the promotion has no effect on the alias.
        """
        began_s = time.monotonic()
        while time.monotonic() - began_s < self._writer_timeout_s:
            newest = self.latest()
            if newest is None or newest.published or newest.number != entry.number:
                return
            time.sleep(_POLL_S)
        try:
            self.publish(entry)
        except MlflowError as error:
            if error.code != NOT_FOUND:
                raise
            self._mark_published(entry)

    def publish(self, entry: LoggedPromotion) -> None:
        """Move the alias ``champion`` to a promoted version, unless a user has moved it elsewhere in the meantime."""
        alias = self.aliases().get(CHAMPION)
        latest = entry
        while alias in (None, entry.promotion.previous, entry.promotion.version):
            self.set_alias(CHAMPION, latest.promotion.version)
            newest = self.latest()
            if newest is None or newest.number == latest.number:
                break
            latest = newest  # a writer that was presumed dead must not move the alias back
        self._mark_published(entry)

    def set_alias(self, alias: str, version: int) -> None:
        """Set an alias of the model."""
        body = {"name": self._name, "alias": alias, "version": str(version)}
        self._server.call("POST", "/registered-models/alias", body)

    def _mark_published(self, entry: LoggedPromotion) -> None:
        place = {"name": self._log, "version": str(entry.number)}
        self._server.call("POST", "/model-versions/set-tag", {**place, "key": _PUBLISHED, "value": "true"})

    def _create_log(self) -> None:
        create_model(self._server, self._log, f"Promotions of {self._name}: each version is a promotion.")

    def _find(self, attempt: str) -> dict[str, Any] | None:
        found = self._server.search_versions(f"name = '{self._log}'", f"tags.`{_ATTEMPT}` = '{attempt}'")
        return {"model_version": found[0]} if found else None

    def recent(self) -> list[LoggedPromotion]:
        """Return the valid promotions among the newest 20 versions, or all if none of these versions is published."""
        return self._valid(self._newest_versions(_RECENT), _RECENT)

    def _newest_versions(self, size: int) -> list[dict[str, Any]]:
        return self._server.search_versions(f"name = '{self._log}'", newest=size)

    def _valid(self, versions: list[dict[str, Any]], size: int) -> list[LoggedPromotion]:
        """Return the valid promotions among the newest ``size`` versions."""
        if len(versions) == size:  # there may be older versions, so start with a promotion that is known to be valid
            published = (index for index, version in enumerate(versions) if _PUBLISHED in tags_of(version))
            first = next(published, None)
            if first is None:
                return self.entries()
            versions = versions[first:]
        return self._replay(versions)

    def _replay(self, versions: Sequence[Mapping[str, Any]]) -> list[LoggedPromotion]:
        """Return the valid promotions. The first version must be valid, as every published promotion is."""
        valid: list[LoggedPromotion] = []
        for version in versions:
            tags = tags_of(version)
            try:
                # A promotion is valid if its writer has seen the valid promotion before it.
                if _SEEN in tags and (not valid or valid[-1].number <= int(tags[_SEEN])):
                    valid.append(self._read(version, tags))
            except (KeyError, ValueError):
                accepted = f"{_VERSION}, {_PREVIOUS} and {_SEEN} with the numbers that Paceline has stored"
                raise InvalidInputError(f"tags of {self._log} version {version['version']}", tags, accepted) from None
        return valid

    def _read(self, version: Mapping[str, Any], tags: Mapping[str, str]) -> LoggedPromotion:
        promotion = Promotion(
            name=self._name,
            version=int(tags[_VERSION]),
            previous=int(tags[_PREVIOUS]) if tags[_PREVIOUS] else None,
            promoted_at=datetime.fromtimestamp(
                int(tags.get(_PROMOTED_AT, version["creation_timestamp"])) / 1000, timezone.utc
            ),
            reason=version.get("description", ""),
            hold=_HOLD in tags,
        )
        return LoggedPromotion(int(version["version"]), promotion, _PUBLISHED in tags)


def missing_champion(name: str, version: int) -> InvalidInputError:
    """Return the error for a champion whose alias was removed, by itself or with the version."""
    accepted = (
        f"version {version}, which was promoted last, with MLflow's alias {CHAMPION!r}: set the alias on this or "
        f"another version in MLflow, or call registry.promote({name!r}, VERSION, reason=...)"
    )
    return InvalidInputError(f"champion of {name}", None, accepted)


def tags_of(version: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a model version."""
    return {tag["key"]: tag.get("value", "") for tag in version.get("tags", [])}


def create_model(server: MlflowServer, name: str, description: str) -> None:
    """Create a registered model unless it exists.

    A rejected creation makes the server load all versions of the model, so search for it first.
    """
    if server.registered_model(name) is not None:
        return
    try:
        server.call("POST", "/registered-models/create", {"name": name, "description": description})
    except MlflowError as error:
        if error.code != ALREADY_EXISTS:
            raise
