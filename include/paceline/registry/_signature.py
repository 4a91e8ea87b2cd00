"""Signatures of model versions, for the registries: HMAC-SHA256 with a key that is not in the registry.

Source: RFC 2104 (HMAC). Its section 3 recommends a key that is at least as long as the digest, 32 bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import json

from paceline.errors import InvalidInputError
from paceline.registry.manifest import ModelVersion

_SHORTEST_KEY = 32
_VERSION, _CONTENTS = b"paceline model version 1\n", b"paceline model contents 1\n"


class Signer:
    """Signs and checks versions. Without a key, it signs nothing and accepts every version.

    Parameters
    ----------
    key:
        At least 32 bytes. White space at both ends is ignored, because secrets from files often end in a new line.

    Examples
    --------
    >>> Signer("secret")
    Traceback (most recent call last):
    paceline.errors.InvalidInputError: signing_key: got '6 bytes', expected at least 32 bytes, such as the output of \
openssl rand -hex 32
    """

    def __init__(self, key: str | bytes | None) -> None:
        if key is not None:
            key = (key.encode() if isinstance(key, str) else key).strip()
            if len(key) < _SHORTEST_KEY:  # the key itself is a secret
                accepted = f"at least {_SHORTEST_KEY} bytes, such as the output of openssl rand -hex 32"
                raise InvalidInputError("signing_key", f"{len(key)} bytes", accepted)
        self._key = key

    def sign(self, version: ModelVersion) -> ModelVersion:
        """Return the version with its signature, which covers all other fields."""
        return version if self._key is None else version.model_copy(update={"signature": self._digest_of(version)})

    def is_valid(self, version: ModelVersion) -> bool:
        """Return whether this key has signed the version."""
        return self._key is None or hmac.compare_digest(
            (version.signature or "").encode(), self._digest_of(version).encode()
        )

    def check(self, version: ModelVersion) -> None:
        """Raise InvalidInputError unless this key has signed the version."""
        if not self.is_valid(version):
            accepted = "the signature of these contents with the registry's signing key"
            raise InvalidInputError(
                f"signature of {version.name} version {version.version}", version.signature, accepted
            )

    def sign_contents(self, name: str, manifest_sha256: str) -> str:
        """Return a signature of a model's manifest whose version has no number yet; empty without a key."""
        return "" if self._key is None else self._hmac(_CONTENTS + f"{name}\n{manifest_sha256}".encode())

    def has_signed_contents(self, name: str, manifest_sha256: str, signature: str) -> bool:
        """Return whether :meth:`sign_contents` with this key has returned ``signature``."""
        return self._key is not None and hmac.compare_digest(
            signature.encode(), self.sign_contents(name, manifest_sha256).encode()
        )

    def _digest_of(self, version: ModelVersion) -> str:
        fields = version.model_dump(mode="json", exclude={"signature"})
        # Without empty fields, so that an optional field that a later release adds does not change earlier signatures.
        fields = {name: value for name, value in fields.items() if value not in (None, {})}
        return self._hmac(_VERSION + json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())

    def _hmac(self, message: bytes) -> str:
        assert self._key is not None
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()
