"""Reads a fleet from its file, and says what is wrong with it in the file's own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from paceline.errors import InvalidInputError
from paceline.fleet.worker import Fleet


def load(path: str | Path) -> Fleet:
    """Read a fleet.

    The file is YAML: ``workers``, a list with the fields of :class:`Worker` each, and ``parameter_server``, either the
    name of a worker or a machine of its own. What stands in ``defaults`` holds for every machine that does not say
    otherwise.

    Parameters
    ----------
    path:
        The file.

    Raises
    ------
    InvalidInputError
        If it is not there, is not YAML, or describes no fleet. The message names the machine and the field.

    Examples
    --------
    >>> import tempfile, textwrap
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "fleet.yaml")
    ...     _ = file.write_text(textwrap.dedent('''
    ...         defaults: {kind: nano, cores: 4, memory_gib: 4}
    ...         workers:
    ...           - {name: gate-1}
    ...           - {name: gate-2, memory_gib: 8, background: [{name: stitching, latency_ms: 200}]}
    ...         parameter_server: gate-1
    ...     '''))
    ...     fleet = load(file)
    >>> [(worker.name, worker.memory_gib) for worker in fleet.workers], fleet.parameter_server.name
    ([('gate-1', 4.0), ('gate-2', 8.0)], 'gate-1')
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError("fleet", str(path), f"a file to read ({_short(error)})") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidInputError("fleet", str(path), f"YAML ({_short(error)})") from None
    return read(content, str(path))


def read(content: Any, source: str = "fleet") -> Fleet:
    """Make a fleet of what was read from ``source``."""
    if not isinstance(content, dict):
        raise InvalidInputError("fleet", source, "a mapping with workers and parameter_server")
    content = dict(content)
    defaults = content.pop("defaults", None) or {}
    workers = content.get("workers")
    if not isinstance(defaults, dict):
        raise InvalidInputError("fleet.defaults", defaults, "a mapping of fields to values")
    if not isinstance(workers, list) or not all(isinstance(worker, dict) for worker in workers):
        raise InvalidInputError("fleet.workers", workers, "a list of machines, each a mapping with at least a name")
    content["workers"] = workers = [{**defaults, **worker} for worker in workers]
    server = content.get("parameter_server", workers[0].get("name") if workers else None)
    if isinstance(server, dict):
        content["parameter_server"] = {**defaults, **server}
    else:
        content["parameter_server"] = next((worker for worker in workers if worker.get("name") == server), None)
        if content["parameter_server"] is None:
            names = ", ".join(str(worker.get("name")) for worker in workers)
            raise InvalidInputError("fleet.parameter_server", server, f"a machine, or the name of one of {names}")
    try:
        return Fleet.model_validate(content)
    except ValidationError as error:
        raise _in_words(error, content) from None


def _in_words(error: ValidationError, content: dict[str, Any]) -> InvalidInputError:
    """The first thing that is wrong, with the machine's name in place of its number."""
    first = error.errors(include_url=False)[0]
    place: Any = content
    field = ["fleet"]
    for key in first["loc"]:
        place = place[key] if _has(place, key) else None
        name = place.get("name") if isinstance(place, dict) and isinstance(key, int) else None
        field.append(str(name if name is not None else key))
    problem = first["msg"].removeprefix("Value error, ")
    value = "nothing" if first["type"] == "missing" else first["input"]
    if first["type"] == "value_error":  # the sentence says it all; the whole machine would only hide it
        value = "what contradicts itself"
    return InvalidInputError(".".join(field), value, f"a fleet that is sound: {problem[0].lower()}{problem[1:]}")


def _has(place: Any, key: Any) -> bool:
    if isinstance(place, dict):
        return key in place
    return isinstance(place, list) and isinstance(key, int) and key < len(place)


def _short(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).strip().splitlines()[0]
