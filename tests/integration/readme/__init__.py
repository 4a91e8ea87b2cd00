"""The DAG of the README with its scripts, its table and its data, for tests that run it to the promotion."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import torch
from upath import UPath

from paceline.registry import FileRegistry, ModelVersion

DAG_ID = "retrain"
BEFORE, DAY = "2026-01-01", "2026-01-02"  # of the champion's training data, and of the run
QUERY = "SELECT age, plan, minutes FROM customers WHERE day = "
SCRIPTS = {name: Path(__file__).with_name(name) for name in ("train.py", "evaluate.py")}
_README = Path(__file__).parents[3] / "README.md"


def dag(runtime: str, *, storage: str = "s3://aws@bucket", defaults: str = "") -> str:
    """Return the README's DAG, started by hand, whose jobs run with ``runtime`` (Python text, as ``defaults``)."""
    (text,) = re.findall(r"## A DAG\n\n```python\n(.*?)```", _README.read_text(), re.DOTALL)
    arguments = f'schedule=None, default_args={{"runtime": {runtime}, {defaults}}}'
    assert text.count('schedule="@hourly"') == 1
    text = text.replace('schedule="@hourly"', arguments).replace("s3://aws@bucket", storage)
    return "from paceline.operators import Docker, Kubernetes\n" + text


def write_table(path: Path) -> None:
    """Create the table of customers in a SQLite file. The customers of ``DAY`` talk longer than those before."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE customers (day TEXT, age REAL, plan TEXT, minutes REAL)")
        for day, mean in ((BEFORE, 100.0), (DAY, 160.0)):
            rows = [(day, age, plan, minutes) for age, plan, minutes in _customers(mean)]
            database.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", rows)


def write_data(bucket: UPath) -> ModelVersion:
    """Write the training and hold-out data, and register and promote a champion. Return the champion."""
    (bucket / DAY).mkdir(parents=True, exist_ok=True)
    (bucket / "holdout").mkdir(parents=True, exist_ok=True)
    (bucket / DAY / "rows.csv").write_text(_labelled(1))
    (bucket / "holdout" / "rows.csv").write_text(_labelled(2))
    content = io.BytesIO()
    torch.save({"weight": torch.tensor([[-0.1, -0.1]]), "bias": torch.zeros(1)}, content)
    (bucket / "old").mkdir(parents=True, exist_ok=True)
    (bucket / "old" / "model.pt").write_bytes(content.getvalue())
    registry = FileRegistry(bucket / "models")
    window = {"source": f"{QUERY}'{BEFORE}'", "conn_id": "store", "parameters": None}
    version = registry.register(bucket / "old", name="churn", data_window=window)
    registry.promote("churn", version.version, reason="the first")
    return version


def connection(kind: str, **values: object) -> str:
    """Return a connection for an environment variable."""
    return json.dumps({"conn_type": kind, **values})


def _customers(mean: float) -> list[tuple[float, str, float]]:
    rng = random.Random(mean)
    return [(rng.gauss(40, 12), rng.choice(["basic", "family", "pro"]), rng.gauss(mean, 20)) for _ in range(400)]


def _labelled(seed: int) -> str:
    rng = random.Random(seed)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["age", "minutes", "churn"])
    for _ in range(300):
        age, minutes = rng.gauss(0, 1), rng.gauss(0, 1)
        writer.writerow([age, minutes, int(age + minutes + rng.gauss(0, 0.5) > 0)])
    return text.getvalue()
