"""Repeat the scenarios in this folder for some minutes in random order, and print a table of their outcomes.

Without ``--minutes`` they run once, in file order, like other tests.
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
    group.addoption("--minutes", type=float, default=None, help="repeat the scenarios for this time")
    group.addoption("--seed", type=int, default=None, help="seed of the order and of the scenarios' random choices")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(1_000_000)


def pytest_report_header(config: pytest.Config) -> str:
    return f"soak: to repeat this order, --seed {config.option.seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    minutes = session.config.option.minutes
    if minutes is None or session.config.option.collectonly or session.testsfailed:
        return None
    if not session.items:
        return None  # pytest reports that no test was selected
    order = _endless_order(session.items, random.Random(session.config.option.seed))
    end_s = time.monotonic() + 60 * minutes
    item = next(order)
    while time.monotonic() < end_s:
        following = next(order)  # fixtures that it does not use are torn down now
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail or session.shouldstop:  # --maxfail, -x
            break
        item = following
    return True


def _endless_order(items: list[pytest.Item], draw: random.Random) -> Iterator[pytest.Item]:
    while True:
        yield from draw.sample(items, len(items))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of faults and outcomes."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    properties: Counter[tuple[str, str]] = Counter()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                name = report.nodeid.partition("::")[2].removeprefix("test_")
                seconds[name] += report.duration
                seen[name] += report.when == "setup"
                outcomes[name][outcome] += outcome in ("passed", "failed", "error", "skipped")
                if report.when == "call":
                    properties.update({(name, key): value for key, value in report.user_properties})
    terminalreporter.section("faults and outcomes")
    width = max(map(len, seconds), default=0)
    heading = "seen  passed  failed  skipped  tries  restarts  seconds each"
    terminalreporter.write_line(f"{'':{width}}  {heading}")
    for name in sorted(seconds):
        found = outcomes[name]
        failed, each_s = found["failed"] + found["error"], seconds[name] / max(seen[name], 1)
        counts = f"{seen[name]:4}  {found['passed']:6}  {failed:6}  {found['skipped']:7}"
        counts += f"  {properties[name, 'tries']:5}  {properties[name, 'restarts']:8}  {each_s:12.0f}"
        terminalreporter.write_line(f"{name:{width}}  {counts}", red=failed > 0)
    for name, reason in EXCLUDED.items():
        terminalreporter.write_line(f"excluded: {name}: {reason}")


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """Return a random generator from the seed, different in every round."""
    rounds = request.config.stash.setdefault(_ROUNDS, Counter())
    rounds[request.node.nodeid] += 1
    return random.Random(f"{request.config.option.seed} {request.node.nodeid} {rounds[request.node.nodeid]}")


_ROUNDS = pytest.StashKey[Counter[str]]()


@pytest.fixture(scope="session")
def other_engine(docker_client: docker.APIClient, trainer_image: str) -> Iterator[str]:
    """Yield the address of a second, private engine with the trainer image."""
    if sites.SKIP_REASON:
        pytest.skip(sites.SKIP_REASON)
    with sites.second_engine(docker_client, trainer_image) as address:
        yield address
