"""How the process that steers a deferred task's job proves itself to Airflow's API server.

It keeps a secret in memory, and stores the secret's hash as an XCom of the task. The newest hash counts.
"""

from hashlib import sha256

STEERING_XCOM = "paceline_steering"
TASK_STATES = "task_states"
"""Key of an answer with the states of other tasks of the run, by their ids; no key of the live state."""


def hash_secret(secret: str) -> str:
    """Return the value of the XCom for a secret."""
    return sha256(secret.encode(errors="replace")).hexdigest()
