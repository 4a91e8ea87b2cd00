"""Followers of data-parallel training that are forked from a Python process with torch imported, to start quickly."""

import os
import subprocess
from types import SimpleNamespace

from tests.unit.forked import Forked

from paceline.train.parallel import _process


def fork_followers(server):
    """Let the lead in this process fork its followers from the Python process at the socket ``server``."""

    def fork(command, *, cwd, env, pass_fds, stdin, stdout):
        return Forked(
            server, command[1:], cwd=cwd, env=env, pass_fds=pass_fds, stdout=stdout, process_group=os.getpgrp()
        )

    _process.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": fork})
