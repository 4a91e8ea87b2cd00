"""Fixtures and helpers: trainings in processes that end by signals."""

import random

import pytest

from paceline.testing.adapter_contract import EXIT_CODES, Scenario, train_in_processes

ROUNDS = 20  # of the trainings with boosting libraries


@pytest.fixture(scope="package")
def train_all(tmp_path_factory):
    """Return a function that runs scenarios with ``train`` of ``with_LIBRARY.py`` and returns what they left, by name.

    A scenario is a dict of the training's options. ``ends`` are its ``signals``.
    """

    def run(library, scenarios, **environment):
        function, folder = f"{__package__}.with_{library}:train", tmp_path_factory.mktemp(library)
        parsed = {name: parse_scenario(**one) for name, one in scenarios.items()}
        return train_in_processes(function, parsed, folder, HF_HUB_OFFLINE="1", **environment)

    return run


def parse_scenario(ends=(), stop=None, **options):
    return Scenario(signals=list(ends), stop=stop, options=options)


def expected_codes(scenario):
    return [EXIT_CODES[signal] for signal, _ in scenario.get("ends", ())] + [0]


def seen(trained):
    """Return the lines that a training wrote to its file ``seen``."""
    return (trained.folder / "seen").read_text().splitlines()


def random_kills(seed):
    """Return pairs of a signal and a round, in any order: a process may also be killed before it trains a new round."""
    generator = random.Random(seed)
    return [(generator.choice(list(EXIT_CODES)), generator.randint(1, ROUNDS)) for _ in range(10)]


def random_ends(seed, steps):
    """Return ten pairs of a signal and one of the steps of three epochs, in increasing order.

    The last step of an epoch and the step after it are among them.
    """
    generator = random.Random(seed)
    chosen = {steps // 3, steps // 3 + 1}
    chosen |= set(generator.sample([one for one in range(1, steps) if one not in chosen], 8))
    return [[generator.choice(list(EXIT_CODES)), step] for step in sorted(chosen)]
