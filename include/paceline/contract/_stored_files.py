"""The record beside a folder in which a task has stored files, which shows ``paceline prune`` whose they are."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from paceline.contract._record import Record, Text


class StoredFiles(Record):
    """The files that a task has stored in a folder: the content of ``FOLDER.paceline.json``.

    Examples
    --------
    >>> stored = StoredFiles(kind="output", dag_id="retrain", run_id="1", task_id="train", names=["model.pt"])
    >>> StoredFiles.read(stored.to_json()) == stored
    True
    """

    version: int = 1
    kind: Literal["output", "checkpoint"]
    dag_id: Text
    run_id: Text
    task_id: Text
    map_index: int = -1
    names: list[Text] = Field(default_factory=list)
    """Files and folders directly in the folder. Copies of a checkpoint have names of their own."""
