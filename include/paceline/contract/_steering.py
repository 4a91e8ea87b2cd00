"""How the process that steers a deferred task's job proves itself to Airflow's API server.

It keeps a secret in memory, and stores the secret's hash as an XCom of the task. The newest hash counts.
"""

from hashlib import sha256

STEERING_XCOM = "paceline_steering"


def hash_secret(secret: str) -> str:
    """Return the value of the XCom for a secret."""
    return sha256(secret.encode(errors="replace")).hexdigest()
