"""Each kind of training code works or is rejected, alone, data-parallel and in a fleet, as the guide's table says."""

import json
import os
import re
from collections import Counter

import pytest

from paceline.train.job import EXIT_REJECTED

from .machines import HERE, INCLUDE, LIMIT_S, free_port

ROOT = HERE.parents[2]
WAYS = ("alone", "data parallel", "fleet")
ROW = re.compile(r"^\|" + 4 * r" ([^|]+) \|" + "$", re.MULTILINE)


def guide_rows():
    text = (ROOT / "docs" / "frameworks.md").read_text()
    table = text[text.index("| training code | alone | data parallel | fleet |") :].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row] for row in ROW.findall(table)[1:]]
    return [(kind, way, cell) for kind, *cells in rows for way, cell in zip(WAYS, cells, strict=True)]


def train(fork, folder, kind, way):
    """Train in one of the ways; return the exit code, the errors, and how often the job trained on each sample."""
    seen = folder / "seen"
    seen.mkdir()
    environment = {**os.environ, "PYTHONPATH": f"{INCLUDE}:{ROOT}", "PACELINE_OUTPUT": str(folder)}
    server = None
    if way == "data parallel":
        (folder / "control.json").write_text('{"devices": 2}')
        environment["PACELINE_CONTROL"] = str(folder / "control.json")
    elif way == "fleet":
        port = free_port()
        (folder / "plan.json").write_text('{"workers": {"a": {"samples": 1}}}')
        command = ["-m", "paceline.train.parameter_server", folder / "plan.json", "--port", port]
        server = fork(command, env=environment)
        environment |= {"PACELINE_SERVER": f"127.0.0.1:{port}", "PACELINE_WORKER": "a"}
    with (folder / "errors.txt").open("w") as errors:
        process = fork([HERE / "training_code.py", kind, seen, fork.args[0]], env=environment, stderr=errors)
        code = process.wait(LIMIT_S)
    if server is not None:
        if code == 0:
            assert server.wait(LIMIT_S) == 0
        server.kill()
    lines = [json.loads(line) for file in seen.iterdir() for line in file.open()]
    trained = Counter(index for weight, indices in lines if weight > 0 for index in indices)
    assert len(list(seen.iterdir())) == (2 if way == "data parallel" else 1) or not trained
    return code, (folder / "errors.txt").read_text(), trained


@pytest.mark.parametrize(("kind", "way", "cell"), guide_rows())
def test_training_code_works_or_is_rejected_as_the_guide_says(fork, tmp_path, kind, way, cell):
    code, errors, trained = train(fork, tmp_path, kind, way)
    if cell == "works":
        assert code == 0, errors
        assert trained == Counter(dict.fromkeys(range(22), 2))
    else:
        assert code == (EXIT_REJECTED if way == "fleet" else 1)
        assert cell.removeprefix("rejected: `").removesuffix("`") in errors
        assert not trained, "the code is rejected before the first batch"
