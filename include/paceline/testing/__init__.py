"""Simulated jobs and emulated devices in place of real jobs and machines, for tests, benchmarks and the demo.

The contracts of runtimes, policies and adapters are tests that authors of such packages run.
"""

import sys

if "pytest" in sys.modules:  # failed assertions of the contracts then show their values
    contracts = ("runtime_contract", "policy_contract", "adapter_contract")
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{contract}" for contract in contracts))
