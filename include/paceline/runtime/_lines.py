"""Assembles a job's output into lines of text. Used by the jobs of every runtime."""

from __future__ import annotations

MAX_LINE_BYTES = 64 * 1024
_CUT = " […line cut]"


class LineAssembler:
    """Assembles lines from pieces of output.

    Invalid UTF-8 becomes the replacement character. Lines are cut after 64 KiB. A carriage return discards the text
    before it, because a terminal overwrites that text (for example, in a progress bar).

    >>> lines = LineAssembler()
    >>> lines.feed(b"epoch 1\\nepo")
    ['epoch 1']
    >>> lines.feed(b"ch 2\\n"), lines.flush()
    (['epoch 2'], [])
    >>> lines.feed(b"10%\\r20%\\r30%\\n")
    ['30%']
    """

    def __init__(self) -> None:
        self._pending = bytearray()
        self._cut = False

    def feed(self, data: bytes) -> list[str]:
        """Process the next piece and return all lines that are now complete."""
        complete, newline, rest = data.rpartition(b"\n")
        lines: list[str] = []
        if newline:
            first, *others = complete.split(b"\n")
            self._append_piece(first)
            lines.append(self._finish_line())
            for line in others:
                self._append_piece(line)
                lines.append(self._finish_line())
        self._append_piece(rest)
        return lines

    def flush(self) -> list[str]:
        """Return the last, unterminated line, if any. Call this after the job has ended."""
        return [self._finish_line()] if self._pending else []

    def _append_piece(self, piece: bytes) -> None:
        # Keep only the text after the last carriage return that is not part of "\r\n".
        start = piece.rfind(b"\r", 0, len(piece) - 1) + 1
        if self._pending.endswith(b"\r") and piece:
            self._pending.clear()
            self._cut = False
        if start:
            self._pending.clear()
            self._cut = False
            piece = piece[start:]
        room = MAX_LINE_BYTES - len(self._pending)
        if len(piece) > room:
            self._cut = True
        self._pending += piece[: max(room, 0)]

    def _finish_line(self) -> str:
        text = bytes(self._pending).removesuffix(b"\r").decode("utf-8", errors="replace")
        if self._cut:
            text += _CUT
        self._pending.clear()
        self._cut = False
        return text
