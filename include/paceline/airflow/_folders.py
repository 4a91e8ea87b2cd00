"""The part of ``paceline clean`` that removes temporary folders of killed worker processes."""

from __future__ import annotations


def report_folders(*, remove: bool) -> None:
    """Print the number of this user's abandoned temporary folders on this machine, and remove them if ``remove``."""
    from paceline.runtime.temporary import find_abandoned, remove_abandoned

    if remove and (removed := remove_abandoned()):
        print(f"Removed temporary folders of killed worker processes: {removed}.")
    elif found := len(find_abandoned()):
        print(f"Temporary folders of killed worker processes: {found}. Remove them with --remove.")
