"""Repeat the scenarios in this folder in random order, for the time in ``--minutes``, and print a table of outcomes.

Without ``--minutes``, each scenario runs once, in file order, like other tests.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

import docker
import pytest
from tests.integration import sites
from tests.soak.faults import EXCLUDED


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("soak")
    group.addoption("--minutes", type=float, default=None, help="repeat the scenarios for this number of minutes")
    group.addoption(
        "--seed", type=int, default=None, help="seed for the order of the scenarios and for their random choices"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(1_000_000)


def pytest_report_header(config: pytest.Config) -> str:
    return f"soak: repeat this order with --seed {config.option.seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    minutes = session.config.option.minutes
    if minutes is None or session.config.option.collectonly or session.testsfailed:
        return None
    if not session.items:
        return None  # let pytest report that no test was selected
    order = _endless_order(session.items, random.Random(session.config.option.seed))
    end_s = time.monotonic() + 60 * minutes
    item = next(order)
    while time.monotonic() < end_s:
        following = next(order)  # pytest tears down the fixtures that ``following`` does not use
        # If there is only one item, tear down everything.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None if following is item else following)
        if session.shouldfail or session.shouldstop:  # --maxfail, -x
            break
        item = following
    return True


def _endless_order(items: list[pytest.Item], rng: random.Random) -> Iterator[pytest.Item]:
    """Yield all items in random order, again and again. No item follows itself, because pytest would not set it up."""
    last = None
    while True:
        order = rng.sample(items, len(items))
        if order[0] is last:
            order.append(order.pop(0))
        yield from order
        last = order[-1]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a table with the outcomes of each scenario."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    run_counts: Counter[str] = Counter()
    properties: Counter[tuple[str, str]] = Counter()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                name = report.nodeid.partition("::")[2].removeprefix("test_")
                seconds[name] += report.duration
                run_counts[name] += report.when == "setup"
                outcomes[name][outcome] += outcome in ("passed", "failed", "error", "skipped")
                if report.when == "call":
                    properties.update({(name, key): value for key, value in report.user_properties})
    terminalreporter.section("faults and outcomes")
    width = max(map(len, seconds), default=0)
    heading = "runs  passed  failed  skipped  tries  restarts   seconds/run"
    terminalreporter.write_line(f"{'':{width}}  {heading}")
    for name in sorted(seconds):
        counts_by_outcome = outcomes[name]
        failed, each_s = (
            counts_by_outcome["failed"] + counts_by_outcome["error"],
            seconds[name] / max(run_counts[name], 1),
        )
        counts = f"{run_counts[name]:4}  {counts_by_outcome['passed']:6}  {failed:6}  {counts_by_outcome['skipped']:7}"
        counts += f"  {properties[name, 'tries']:5}  {properties[name, 'restarts']:8}  {each_s:12.0f}"
        terminalreporter.write_line(f"{name:{width}}  {counts}", red=failed > 0)
    for name, reason in EXCLUDED.items():
        terminalreporter.write_line(f"excluded: {name}: {reason}")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Return a random generator that depends on the seed and on how often the test has run."""
    rounds = request.config.stash.setdefault(_ROUNDS, Counter())
    rounds[request.node.nodeid] += 1
    return random.Random(f"{request.config.option.seed} {request.node.nodeid} {rounds[request.node.nodeid]}")


_ROUNDS = pytest.StashKey[Counter[str]]()


@pytest.fixture(scope="session")
def second_engine(docker_client: docker.APIClient, trainer_image: str) -> Iterator[str]:
    """Yield the address of a second, private engine with the trainer image."""
    if sites.SKIP_REASON:
        pytest.skip(sites.SKIP_REASON)
    with sites.second_engine(docker_client, trainer_image) as address:
        yield address
