"""Runs a parameter server: ``python -m paceline.train.parameter_server PLAN``.

PLAN is a JSON file with the schedule: ``{"workers": {NAME: {"samples": 600, "batch_size": 32}}}``.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from paceline.train._display import choose_display
from paceline.train._values import log
from paceline.train.job import ENV_SERVER_KEY
from paceline.train.saving.checkpoint import checkpoint_folder
from paceline.train.saving.store import Store

from ._server import Server
from .handshake import end_process
from .plan import PORT, read_plan

_STUCK_S, _PATIENCE_S = 60.0, 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a parameter server until training ends; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m paceline.train.parameter_server", description=__doc__)
    parser.add_argument("plan", type=Path, help="JSON file with the schedule")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=PORT, help=f"port to listen on ({PORT}; 0 for a free port)")
    help_text = f"seconds after which an unfinished batch goes to another worker ({_STUCK_S:g})"
    parser.add_argument("--stuck-s", type=float, default=_STUCK_S, help=help_text)
    help_text = f"seconds after which a server without workers ends ({_PATIENCE_S:g})"
    parser.add_argument("--patience-s", type=float, default=_PATIENCE_S, help=help_text)
    help_text = "keep faster workers from taking over samples from slower workers, as in Deep-Edge"
    parser.add_argument("--fixed-shards", action="store_true", help=help_text)
    options = parser.parse_args(arguments)
    folder = checkpoint_folder(None)
    display = choose_display()
    server = Server(
        read_plan(options.plan.read_text()),
        options.host,
        options.port,
        key=os.environ.get(ENV_SERVER_KEY, "").encode(),
        store=Store(folder) if folder is not None else None,
        display=display,
        stuck_s=options.stuck_s,
        patience_s=options.patience_s,
        fixed=options.fixed_shards,
    )
    log(f"parameter server listens on {options.host}:{server.port}")

    def handle_sigterm(number: int, frame: FrameType | None) -> None:
        server.terminate()

    signal.signal(signal.SIGTERM, handle_sigterm)
    try:
        return server.run()
    finally:
        display.close()


if __name__ == "__main__":
    end_process(main())
