"""The examples of the guide for libraries run unchanged as a job that gets SIGTERM and is started again."""

import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from paceline.train.progress import parse_line

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
SECTIONS = {section.partition("\n")[0]: section for section in re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]}
MODELS = {
    "XGBoost": "model.ubj",
    "LightGBM": "model.txt",
    "CatBoost": "model.cbm",
    "scikit-learn": "model.skops",
    "PyTorch Lightning": "model.pt",
    "Hugging Face Trainer": "model/model.safetensors",
    "Keras": "model.keras",
    "torchrun and Accelerate": "model.pt",
}


@pytest.mark.parametrize("library", MODELS)
def test_example_is_resumed_after_sigterm_and_writes_its_model(tmp_path, fork, library):
    (tmp_path / "train.py").write_text(re.search(r"```python\n(.*?)```", SECTIONS[library], re.DOTALL)[1])
    command = re.search(r"`python (-m torch.distributed.run .*)`", SECTIONS[library])
    arguments = command[1].split() if command else ["train.py"]
    environment = {"PYTHONPATH": str(ROOT / "include"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for name in ("INPUT", "OUTPUT", "CHECKPOINT"):
        (tmp_path / name).mkdir()
        environment[f"PACELINE_{name}"] = str(tmp_path / name)
    features = np.random.default_rng(1).normal(size=(1200, 5))
    np.savez(tmp_path / "INPUT" / "data.npz", features=features, target=features[:, 0] * features[:, 1])

    def start():
        return fork(arguments, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    process, lines = start(), []
    for line in process.stdout:
        lines.append(line)
        if '"event":"start"' in line:
            process.send_signal(signal.SIGTERM)
    ended = {0, 1} if command else {0, 143}  # 0: training has ended before the signal arrived
    assert process.wait() in ended, "".join(lines)
    process = start()
    log = process.stdout.read()
    assert process.wait() == 0, log
    assert "paceline: resumed from" in log
    progress = [parsed for line in log.splitlines() if (parsed := parse_line(line))]
    assert (progress[-1].event, progress[-1].percent) == ("finish", 100)
    assert progress[-1].metrics
    assert (tmp_path / "OUTPUT" / MODELS[library]).stat().st_size > 0


def test_every_example_of_the_guide_is_tested():
    assert {name for name, section in SECTIONS.items() if "```python" in section} == set(MODELS)
