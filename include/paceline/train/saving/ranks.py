"""The ranks of a job under ``torchrun`` or Accelerate: they restore what rank 0 has read, and end when it has saved.

Called by ``checkpoint`` and by the SIGTERM handler in ``_session``. Needs ``torch.distributed``'s process group.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any, TypeVar

from paceline.train.job import EXIT_TERMINATED, rank_count

T = TypeVar("T")

# The store may survive a restart by torchrun, so the key contains the attempt.
_ENDED = f"paceline/ended/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
_POLL_S = 0.1


def from_rank_0(value: T) -> T:
    """Return rank 0's ``value`` on every rank, and ``value`` itself in a process without other ranks.

    Raises ``RuntimeError`` if there are several ranks but no process group yet.
    """
    if rank_count() < 2:
        return value
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "checkpoint() on several ranks needs their process group: "
            "call torch.distributed.init_process_group() or create the Accelerator before checkpoint()"
        )
    # The default group may send from the GPU's memory, which the model and its training need.
    group = dist.new_group(backend="gloo")
    box = [value]
    dist.broadcast_object_list(box, src=0, group=group)
    dist.destroy_process_group(group)
    return box[0]


def announce_end() -> None:
    """Inform the other ranks that rank 0 has saved after SIGTERM and ends now."""
    if store := _store():
        with contextlib.suppress(Exception):
            store.set(_ENDED, "")


def end_after_rank_0() -> None:
    """End this process as soon as rank 0 has saved; until then, continue training.

    Rank 0 saves between two batches, and each batch needs all ranks. After rank 0 has ended, this process would wait
    for the next batch in code that Python cannot interrupt, so another thread ends the process.
    """
    threading.Thread(target=_wait_for_end, args=(_store(),), daemon=True).start()


def _wait_for_end(store: Any) -> None:
    with contextlib.suppress(Exception):  # the store ends with rank 0 if rank 0 holds it
        while store is not None and not store.check([_ENDED]):
            time.sleep(_POLL_S)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(EXIT_TERMINATED)


def _store() -> Any:
    """Return the key-value store of the process group; ``None`` without a group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.distributed_c10d._get_default_store()
