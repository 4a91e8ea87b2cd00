"""Stores profiles in a folder or an object store, one file for each kind of device."""

from __future__ import annotations

from upath import UPath

from paceline.errors import InvalidInputError
from paceline.profiles._device import DeviceProfile
from paceline.registry import storage
from paceline.registry.base import StoragePath


class ProfileStore:
    """Store of a fleet's device profiles.

    Parameters
    ----------
    root:
        Path or URL. Airflow code passes an ``ObjectStoragePath``, which includes its connection.

    Examples
    --------
    >>> from upath import UPath
    >>> ProfileStore(UPath("memory://profiles")).load("nano") is None
    True
    """

    def __init__(self, root: StoragePath) -> None:
        self._root = root if isinstance(root, UPath) else UPath(root)

    def load(self, kind: str) -> DeviceProfile | None:
        """Return the profile of a kind, or ``None`` if missing. Raises ``InvalidInputError`` if the file is invalid."""
        data = storage.read(self._root, _name(kind))
        if data is None:
            return None
        try:
            return DeviceProfile.loads(data)
        except InvalidInputError as error:
            accepted = f"{error.accepted}; a ProfileOperator replaces the file"
            raise InvalidInputError("profiles", str(self._root / _name(kind)), accepted) from None

    def save(self, profile: DeviceProfile) -> None:
        """Store a profile. Replace an earlier profile of the same kind atomically."""
        storage.put(self._root, _name(profile.kind), profile.dumps())


def _name(kind: str) -> str:
    return f"{kind}.json"
