"""``paceline prune``: lists and removes what grows for ever, and nothing that a champion or a run needs.

It complements ``airflow db clean``, which removes what is in Airflow's database.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from upath import UPath

from paceline.airflow._clean import seconds_of
from paceline.airflow._prune_items import KINDS, Item, KeptError, counted
from paceline.errors import InvalidInputError, PacelineError

if TYPE_CHECKING:
    from paceline.airflow._prune_runs import Runs

_HEADINGS = ("", "KIND", "AGE", "SIZE", "WHAT", "REASON")
_YOUNG = "not old enough"


class _Search:
    """The search for items in all places. A place that cannot be read is reported, and nothing in it is removed."""

    def __init__(self, options: argparse.Namespace, runs: Runs) -> None:
        self._options, self._runs = options, runs
        self._before = datetime.now(timezone.utc) - timedelta(seconds=options.older_than)
        self.failed = False

    def items(self) -> list[Item]:
        """Return the items of the kinds that the user has named."""
        from paceline.airflow._prune_files import Rules

        options, windows = self._options, set[str]()
        found: list[Item] = []
        complete = bool(options.registry)
        for location in options.registry:
            items, more = self._read(location, partial(self._versions, location)) or ([], None)
            found += items
            complete = complete and more is not None
            windows |= more or set()
        rules = Rules(self._runs, self._before, windows if complete else None)
        for location in options.folder:
            found += self._read(location, partial(self._files, location, rules)) or []
        return [item for item in found if f"{item.kind}s" in options.only]

    def _versions(self, location: str) -> tuple[list[Item], set[str] | None]:
        from paceline.airflow._model_command import open_location
        from paceline.airflow._prune_versions import Versions

        versions = Versions(
            open_location("--registry", location, None), location, self._runs, self._before, self._options.keep_last
        )
        return list(versions.find()), versions.windows

    def _files(self, location: str, rules: Any) -> list[Item]:
        from paceline.airflow._prune_files import find_files
        from paceline.airflow.places import storage_path

        root = storage_path(location)
        assert isinstance(root, UPath)  # an ObjectStoragePath is one, which type checkers do not see
        if not root.is_dir():
            raise InvalidInputError("--folder", location, "an existing folder")
        return list(find_files(root, rules))

    def _read(self, location: str, read: Callable[[], Any]) -> Any:
        import httpx

        from paceline.airflow.api import AirflowApiError

        try:
            return read()
        except (AirflowApiError, httpx.TransportError):
            raise  # without Airflow's answer, nothing is removed anywhere
        except Exception as error:  # an object store may raise any exception
            print(f"paceline: skipped {location}: {error}", file=sys.stderr)
            self.failed = True
            return None


def add_command(
    commands: Any, parents: list[argparse.ArgumentParser], connect: Callable[[argparse.Namespace], Any]
) -> None:
    """Add ``paceline prune`` to the subparsers. The ``parents`` have the options with which ``connect`` logs in."""
    prune = commands.add_parser(
        "prune",
        parents=parents,
        help="list and remove old reports, outputs, checkpoints and versions",
        description="List old drift reports, outputs of trainings, copies of checkpoints and versions of models, and "
        "remove them with --remove. The champion, the champion before it and whatever a run needs that has not ended "
        "are kept.",
    )
    prune.add_argument(
        "--folder",
        action="append",
        metavar="PLACE",
        help="folder or URL with reports, outputs or checkpoints, repeatable (default: $AIRFLOW_HOME/paceline-data)",
    )
    prune.add_argument(
        "--registry", action="append", default=[], metavar="PLACE", help="registry of models, repeatable"
    )
    prune.add_argument(
        "--older-than",
        type=seconds_of,
        default=90 * 86_400.0,
        metavar="TIME",
        help="only what was written before this time, and versions that were replaced before it, such as 30d "
        "(default: 90d)",
    )
    prune.add_argument(
        "--keep-last",
        type=_positive,
        default=5,
        metavar="N",
        help="keep the newest N versions of each model (default: %(default)s)",
    )
    prune.add_argument(
        "--only", type=_kinds, default=KINDS, metavar="KINDS", help=f"a comma-separated part of {','.join(KINDS)}"
    )
    prune.add_argument(
        "--json", action="store_true", help="print all items as JSON, also those that are not old enough"
    )
    prune.add_argument("--remove", action="store_true", help="remove what may be removed, after a question")
    prune.add_argument("--yes", action="store_true", help="with --remove: ask no question")
    prune.set_defaults(run=lambda options: _run_prune(options, connect))


def _run_prune(options: argparse.Namespace, connect: Callable[[argparse.Namespace], Any]) -> int:
    from paceline.airflow._prune_runs import Runs

    if options.json and options.remove and not options.yes:
        raise InvalidInputError("--yes", None, "--yes, because --json asks no question")
    options.folder = options.folder or list(_default_folder())
    if not (options.folder or options.registry):
        raise InvalidInputError("--folder", None, "a folder or URL, or --registry")
    search = _Search(options, Runs(connect(options)))
    items = sorted(search.items(), key=lambda item: (item.remove is None, item.kind, item.used_at))
    removable = [item for item in items if item.remove]
    if options.json:
        print(json.dumps([_to_json(item) for item in items], indent=1))
    else:
        _print_table(items)
    is_agreed = options.remove and bool(removable) and (options.yes or _ask(removable))
    if is_agreed and not _remove(removable, sys.stderr if options.json else sys.stdout):
        return 1
    return 1 if search.failed else 0


def _default_folder() -> Iterator[str]:
    folder = os.path.join(os.environ.get("AIRFLOW_HOME", os.path.expanduser("~/airflow")), "paceline-data")
    if os.path.isdir(folder):
        yield folder


def _print_table(items: Sequence[Item]) -> None:
    shown = [item for item in items if not _is_young(item)]
    rows = [_HEADINGS, *map(_table_row, shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows if shown else ():
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    young = Counter(item.kind for item in items if _is_young(item))
    if young:
        print(f"Not old enough: {', '.join(counted(number, kind) for kind, number in sorted(young.items()))}.")
    removable = [item for item in items if item.remove]
    print(f"Removable: {len(removable)} of {len(items)}, {_size(sum(item.size_bytes for item in removable))}.")


def _is_young(item: Item) -> bool:
    return item.remove is None and item.reason == _YOUNG


def _table_row(item: Item) -> tuple[str, ...]:
    age = f"{item.age.days}d" if item.age.days else f"{item.age.seconds // 3600}h"
    return ("remove" if item.remove else "keep", item.kind, age, _size(item.size_bytes), item.name, item.reason)


def _to_json(item: Item) -> dict[str, Any]:
    return {
        "action": "remove" if item.remove else "keep",
        "kind": item.kind,
        "what": item.name,
        "used_at": item.used_at.isoformat(),
        "size_bytes": item.size_bytes,
        "reason": item.reason,
    }


def _ask(removable: Sequence[Item]) -> bool:
    try:
        return input(f"Remove {len(removable)} for good? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        raise InvalidInputError("--yes", None, "--yes, or a terminal to ask for it") from None


def _remove(removable: Sequence[Item], out: Any) -> bool:
    """Remove items one after the other. Return whether there was no error."""
    import httpx

    without_error = True
    for item in removable:
        assert item.remove is not None
        try:
            item.remove()
            print(f"Removed {item.kind} {item.name}", file=out)
        except (KeptError, InvalidInputError) as error:  # it has come into use, or another process has removed it
            print(f"Kept {item.kind} {item.name}: {error}", file=out)
        except (PacelineError, httpx.TransportError):
            raise
        except Exception as error:  # an object store may raise any exception
            print(f"paceline: {item.kind} {item.name} is not removed: {error}", file=sys.stderr)
            without_error = False
    return without_error


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at least 1")
    return int(text)


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"got {kind!r}, expected a comma-separated part of {','.join(KINDS)}")
    return kinds
