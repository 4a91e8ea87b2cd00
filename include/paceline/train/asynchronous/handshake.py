"""Lets in whoever comes and proves to have the key. Used by ``server`` and by ``part``."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from paceline.train._values import say

from .peer import GoneError, Peer, listen

# Whoever comes has to say soon who it is, and not too many may come at the same time: where there is a way in from
# outside, it can be anybody.
_INTRODUCTION_S, _MOST_STRANGERS = 10.0, 64
_AGAIN_S = 0.05


class Handshake:
    """Listens, and gives each guest a thread of its own.

    Parameters
    ----------
    host, port:
        Where to listen; port 0 takes a free one.
    key:
        The secret that guests have to prove; empty for none.
    serve:
        Called with the guest's connection, the first thing that it has said, and its number; returns whether the
        connection is kept. Else it is closed then.
    """

    def __init__(self, host: str, port: int, key: bytes, serve: Callable[[Peer, dict[str, Any], int], bool]) -> None:
        self._key, self._serve = key, serve
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)  # who have not said who they are
        self._listener = listen(host, port)
        self.port: int = self._listener.address[1]

    def open(self) -> None:
        """Let guests in from now on."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        guest = 0
        while True:
            try:
                connection = self._listener.accept()
            except OSError as error:  # whoever came has gone again, or there are too many
                say(f"somebody came and went: {error}")
                time.sleep(_AGAIN_S)
                continue
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            guest += 1
            threading.Thread(target=self._let_in, args=(connection, guest), daemon=True).start()

    def _let_in(self, connection: Connection, guest: int) -> None:
        peer, kept = Peer(connection), False
        try:
            try:
                peer.be_patient(_INTRODUCTION_S)
                peer.prove(self._key, first=True)
                words = peer.receive()
                peer.be_patient(None)
            finally:
                self._strangers.release()
            kept = self._serve(peer, words, guest)
        except Exception as error:  # what is said may be wrong in any way: it costs whoever said it the connection
            say(f"a connection has ended: {why(error)}")
        finally:
            if not kept:
                peer.close()


def why(error: Exception) -> str:
    """Why a connection has ended, for people."""
    return str(error) if isinstance(error, (GoneError, ValueError)) else f"it said what cannot be: {error!r}"


def end_process(code: int) -> NoReturn:
    """End with this code whatever guests' threads are at: one in the middle of a sum would abort Python's own way out,
    and with it lose the code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
