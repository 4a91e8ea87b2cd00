"""``paceline model``: list, show, fetch, promote and roll back the versions of a model in a registry."""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import InvalidInputError, PacelineError

if TYPE_CHECKING:
    from paceline.registry import ModelVersion, Promotion, Registry

_MOST_NAMES = 10  # of models, the most similar first
_NEWEST = 10  # versions that are looked at for a signature
_HEADINGS = ("VERSION", "CREATED", "SCORES", "")


def add_command(
    commands: Any, parents: list[argparse.ArgumentParser], connect: Callable[[argparse.Namespace], Any]
) -> None:
    """Add ``paceline model`` to the subparsers. The ``parents`` have the options with which ``connect`` logs in."""
    actions = commands.add_parser("model", help="versions of a model in a registry").add_subparsers(
        required=True, metavar="ACTION"
    )

    def add(name: str, text: str, run: Callable[[argparse.Namespace], int], version: str | None) -> Any:
        sends = name in ("promote", "rollback")
        action = actions.add_parser(name, help=text, parents=parents if sends else [])
        action.add_argument("registry", metavar="REGISTRY", help="/data/models, s3://CONN@bucket/models, mlflow://CONN")
        action.add_argument("model", metavar="MODEL")
        action.add_argument(
            "--signing-conn-id",
            metavar="CONN_ID",
            help="connection whose password is the key of signed versions, for example in AIRFLOW_CONN_MODEL_KEY",
        )
        if version is not None:
            action.add_argument("version", metavar="VERSION", nargs=version, help="number, or champion")
        if sends or name == "release":
            action.add_argument("--reason", required=True, help="stored with your name in the history of promotions")
        if sends:
            action.add_argument("--asset", help="name of the asset that gets an event, as after PromoteOperator")
        action.set_defaults(run=run, connect=connect, asset=None)
        return action

    add("list", "list the versions, oldest first", _list, None)
    add("show", "print a version and the history of promotions", _show, "?")
    fetch = add("fetch", "copy a version's files into a folder and check each digest", _fetch, "?")
    fetch.add_argument("--to", required=True, metavar="FOLDER")
    add("promote", "make a version the champion", _promote, None).add_argument("version", metavar="VERSION")
    add("rollback", "go back to an earlier champion, and hold it there", _roll_back, "?")
    add("release", "let tasks promote again after a rollback", _release, None)


def open_location(field: str, location: str, signing_conn_id: str | None) -> Registry:
    """Open an existing registry at a location that a user has named as ``field``."""
    from airflow.sdk.exceptions import AirflowException

    from paceline.airflow.places import check_registry_location, open_registry

    check_registry_location(field, location)
    if os.path.isabs(location) and not os.path.isdir(location):
        raise InvalidInputError(field, location, "an existing folder, or a URL")
    try:
        return open_registry(location, signing_conn_id)
    except AirflowException as error:  # a connection does not exist
        if signing_conn_id and signing_conn_id in str(error):
            raise InvalidInputError("--signing-conn-id", signing_conn_id, "an existing connection") from None
        raise InvalidInputError(field, location, f"a URL with an existing connection ({error})") from None


def _open(options: argparse.Namespace) -> Registry:
    registry = open_location("REGISTRY", options.registry, options.signing_conn_id)
    if not registry.summaries(options.model, 1):
        names = registry.models()
        known = ", ".join(get_close_matches(options.model, names, _MOST_NAMES, cutoff=0.0)) or "none yet"
        accepted = f"a model with a version in {options.registry}, which has {known}"
        raise InvalidInputError("MODEL", options.model, accepted)
    return registry


def _list(options: argparse.Namespace) -> int:
    registry, champion, missing = _open(options), None, ""
    try:
        champion = registry.champion(options.model)
    except InvalidInputError as error:
        missing = str(error)
    rows = [_HEADINGS]
    for number in registry.numbers(options.model):
        try:
            version = registry.version(options.model, number)
        except InvalidInputError as error:
            rows.append((str(number), "-", "-", f"not usable: {error}"))
            continue
        scores = " ".join(f"{name}={score:.6g}" for name, score in version.metrics.items())
        is_champion = champion is not None and number == champion.version
        created = version.created_at.astimezone().isoformat(" ", "seconds")
        rows.append((str(number), created, scores or "-", "champion" if is_champion else ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if missing:
        print(f"No usable champion: {missing}")
    return 0


def _show(options: argparse.Namespace) -> int:
    registry = _open(options)
    version = _version(registry, options)
    print(version.model_dump_json(indent=2))
    for promotion in registry.history(options.model):
        print(_describe(promotion))
    return 0


def _fetch(options: argparse.Namespace) -> int:
    registry = _open(options)
    version = _version(registry, options)
    registry.fetch(version, Path(options.to))
    print(f"{options.model} version {version.version}: {len(version.files)} files in {options.to}")
    return 0


def _promote(options: argparse.Namespace) -> int:
    registry = _open(options)
    return _change(options, registry, _version(registry, options).version, hold=False)


def _roll_back(options: argparse.Namespace) -> int:
    from paceline.registry.base import champion_before

    registry = _open(options)
    if options.version is not None:
        return _change(options, registry, _version(registry, options).version, hold=True)
    history = registry.history(options.model)
    champion = history[-1].version if history else None
    with suppress(InvalidInputError):  # the champion's version was deleted
        champion = _version(registry, options).version  # a person may have chosen it in MLflow
    replaced = champion_before(history, champion)
    if replaced is None:
        raise InvalidInputError("VERSION", None, "a number, because there is no earlier champion to go back to")
    return _change(options, registry, replaced, hold=True)


def _release(options: argparse.Namespace) -> int:
    registry = _open(options)
    champion = registry.champion(options.model)
    if champion is None:
        raise InvalidInputError("MODEL", options.model, "a model with a champion")
    return _change(options, registry, champion.version, hold=False)


def _change(options: argparse.Namespace, registry: Registry, version: int, *, hold: bool) -> int:
    """Promote a version, and send the event. A repeated command with the same VERSION only sends the event again."""
    if not options.reason.strip():
        raise InvalidInputError("--reason", options.reason, "a reason, which is stored in the history of promotions")
    if options.signing_conn_id is None and (signed := _signed_version(registry, options.model, version)) is not None:
        accepted = f"the id of the connection with the key: version {signed} is signed"
        raise InvalidInputError("--signing-conn-id", None, accepted)
    api = options.connect(options) if options.asset else None
    assets = api.api("GET", "/assets", name_pattern=options.asset)["assets"] if api else []
    asset = next((one for one in assets if one["name"] == options.asset), None)
    if api and asset is None:
        raise InvalidInputError("--asset", options.asset, "the name of an asset of this Airflow")
    before = registry.last_promotion(options.model)
    promotion = registry.promote(options.model, version, f"{options.reason} ({_person(options)})", hold=hold)
    unchanged = "Nothing has changed since " if promotion == before else ""
    print(f"{unchanged}{_describe(promotion)}")
    if api and asset:
        _send_event(api, options, int(asset["id"]), promotion)
    return 0


def _send_event(api: Any, options: argparse.Namespace, asset_id: int, promotion: Promotion) -> None:
    import httpx

    extra = {"model": options.model, "version": promotion.version, "previous_version": promotion.previous}
    body = {"asset_id": asset_id, "extra": {**extra, "reason": promotion.reason}}
    try:
        api.api("POST", "/assets/events", body)
    except (PacelineError, httpx.TransportError) as error:
        again = f"repeat the command with VERSION {promotion.version}, which changes nothing else"
        raise PacelineError(f"the champion has changed, but its event was not sent: {again} ({error})") from error
    print(f"Event of the asset {options.asset} sent.")


def _signed_version(registry: Registry, name: str, version: int) -> int | None:
    """Return a version with a signature among the newest, the champion and ``version``; ``None`` without one."""
    newest = next((one.version for one in registry.summaries(name, _NEWEST) if one.signed), None)
    if newest is not None:
        return newest
    if registry.version(name, version).signature:
        return version
    with suppress(InvalidInputError):  # the champion is damaged or missing
        if (champion := registry.champion(name)) is not None and champion.signature:
            return champion.version
    return None


def _person(options: argparse.Namespace) -> str:
    if options.asset and not os.environ.get("PACELINE_AIRFLOW_TOKEN"):
        return str(options.user)
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"user {os.getuid()}"


def _version(registry: Registry, options: argparse.Namespace) -> ModelVersion:
    if options.version in (None, "champion"):
        champion = registry.champion(options.model)
        if champion is None:
            raise InvalidInputError("VERSION", "champion", f"a number: {options.model} has no champion yet")
        return champion
    if not (options.version.isascii() and options.version.isdecimal()):
        raise InvalidInputError("VERSION", options.version, "a number, or champion")
    return registry.version(options.model, int(options.version))


def _describe(promotion: Promotion) -> str:
    when = promotion.promoted_at.astimezone().isoformat(" ", "seconds")
    previous = "none" if promotion.previous is None else str(promotion.previous)
    hold = ", held until it is released" if promotion.hold else ""
    return f"{when}  {promotion.name}: champion {previous} -> {promotion.version}{hold}. {promotion.reason}"
