"""Reads a fleet from its file; errors name the machine and the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from paceline.errors import InvalidInputError
from paceline.fleet._machine import Fleet


class _Loader(yaml.SafeLoader):
    """Reads YAML and rejects a key that is given twice, whose first value would otherwise be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"a second {key.value!r}", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(path: str | Path) -> Fleet:
    """Read a fleet from a YAML file.

    ``machines`` is a list of mappings with the fields of :class:`Machine`. ``parameter_server`` is the name of one of
    these machines (by default, the first), or the mapping of another machine. ``defaults`` contains default values of
    fields for all machines.

    Parameters
    ----------
    path:
        Path of the YAML file.

    Raises
    ------
    InvalidInputError
        If the file is missing, is not YAML, or is not a valid fleet. The message names the machine and the field.

    Examples
    --------
    >>> import tempfile, textwrap
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "fleet.yaml")
    ...     _ = file.write_text(textwrap.dedent('''
    ...         defaults: {kind: nano, cores: 4, memory_gib: 4}
    ...         machines:
    ...           - {name: gate-1}
    ...           - {name: gate-2, memory_gib: 8, background: [{name: stitching, latency_ms: 200}]}
    ...         parameter_server: gate-1
    ...     '''))
    ...     fleet = load(file)
    >>> [(machine.name, machine.memory_gib) for machine in fleet.machines], fleet.parameter_server.name
    ([('gate-1', 4.0), ('gate-2', 8.0)], 'gate-1')
    """
    path = Path(path)
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506, a safe loader
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError("fleet", str(path), f"a readable file ({_error_text(error)})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInputError("fleet", str(path), f"YAML ({_error_text(error)})") from None
    return read(content, str(path))


def read(content: Any, source: str = "fleet") -> Fleet:
    """Return the fleet described by a parsed file; ``source`` is the file name in errors."""
    if not isinstance(content, dict):
        raise InvalidInputError("fleet", source, 'a mapping with "machines" and "parameter_server"')
    content = dict(content)
    defaults = content.pop("defaults", None) or {}
    machines = content.get("machines")
    if not isinstance(defaults, dict):
        raise InvalidInputError("fleet.defaults", defaults, "a mapping of fields to values")
    if not isinstance(machines, list) or not all(isinstance(machine, dict) for machine in machines):
        raise InvalidInputError("fleet.machines", machines, "a list of machines, each a mapping with at least a name")
    if not machines:
        raise InvalidInputError("fleet.machines", machines, "at least one machine")
    content["machines"] = machines = [{**defaults, **machine} for machine in machines]
    server = content.get("parameter_server", machines[0].get("name"))
    if isinstance(server, dict):
        content["parameter_server"] = {**defaults, **server}
    else:
        content["parameter_server"] = next((machine for machine in machines if machine.get("name") == server), None)
        if content["parameter_server"] is None:
            names = ", ".join(str(machine.get("name")) for machine in machines)
            raise InvalidInputError("fleet.parameter_server", server, f"a machine, or one of the names {names}")
    try:
        return Fleet.model_validate(content)
    except ValidationError as error:
        raise _to_input_error(error, content) from None


def _to_input_error(error: ValidationError, content: dict[str, Any]) -> InvalidInputError:
    """Convert the first validation error; the field contains the machine's name instead of its index."""
    first = error.errors(include_url=False)[0]
    node: Any = content
    field = ["fleet"]
    for key in first["loc"]:
        node = node[key] if _has_key(node, key) else None
        name = node.get("name") if isinstance(node, dict) and isinstance(key, int) else None
        field.append(str(name if name is not None else key))
    problem = first["msg"].removeprefix("Value error, ")
    value = "nothing" if first["type"] == "missing" else first["input"]
    if isinstance(value, dict) and first["type"] == "value_error":  # omit the whole machine: the message suffices
        value = "inconsistent values"
    return InvalidInputError(".".join(field), value, f"a valid fleet: {problem[0].lower()}{problem[1:]}")


def _has_key(node: Any, key: Any) -> bool:
    if isinstance(node, dict):
        return key in node
    return isinstance(node, list) and isinstance(key, int) and key < len(node)


def _error_text(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    return (getattr(error, "strerror", None) or str(error)).strip().splitlines()[0]
