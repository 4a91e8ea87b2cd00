"""The contract of all runtimes, as tests that the author of a runtime runs. Needs pytest.

Subclass ``RuntimeContract`` as a test class, with a fixture ``harness`` that describes the runtime::

    from paceline.testing.runtime_contract import RuntimeContract, RuntimeHarness, fail_on_leftovers

    class MyHarness(RuntimeHarness):
        ...  # signal(), quota_of(), leftovers(), remove_leftovers() and constructor

    class TestMyRuntime(RuntimeContract):
        @pytest.fixture
        def harness(self, tmp_path):
            with fail_on_leftovers(MyHarness(MyRuntime(), tmp_path)) as harness:
                yield harness

The jobs of the tests are real. No test depends on the speed of the machine; together they take one to two minutes.
"""

from ._earlier import EarlierJobs
from ._output import JobOutput
from ._running import RunningJobs
from ._teams import TeamContract, TeamHarness
from .harness import MAX_OUTPUT_BYTES, RuntimeHarness, fail_on_leftovers

__all__ = [
    "MAX_OUTPUT_BYTES",
    "RuntimeContract",
    "RuntimeHarness",
    "TeamContract",
    "TeamHarness",
    "fail_on_leftovers",
]


class RuntimeContract(RunningJobs, JobOutput, EarlierJobs):
    """Tests of the protocols :class:`paceline.runtime.Runtime` and :class:`paceline.runtime.Job`.

    A subclass has a fixture ``harness`` that returns a :class:`RuntimeHarness`, a new one for each test.
    """
