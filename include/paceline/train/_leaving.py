"""Where the training code leaves a loop, and whether an exception ends the loop.

Used by the sources of batches, whose generator Python closes in both cases without showing it the exception.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
from pathlib import Path
from types import FrameType, TracebackType

_PACKAGE = str(Path(__file__).parent)


class LoopExit:
    """The place at which the training code leaves the loop that calls this.

    Examples
    --------
    >>> def batches():
    ...     try:
    ...         yield 1
    ...     except GeneratorExit:
    ...         print(LoopExit().is_error)
    >>> for batch in batches():
    ...     break
    False
    """

    def __init__(self) -> None:
        frame: FrameType | None = sys._getframe(1)
        # Generators around the loop, such as those of tqdm, are closed like the loop's own.
        while frame is not None and (_is_ours(frame) or frame.f_code.co_flags & inspect.CO_GENERATOR):
            frame = frame.f_back
        self._frame = frame

    def __str__(self) -> str:
        frame = self._frame
        return f"line {frame.f_lineno} of {frame.f_code.co_filename}" if frame is not None else "an unknown line"

    @property
    def is_error(self) -> bool:
        """Whether an exception leaves the loop. False also if this cannot be known.

        It may come from the loop's own code, such as the data set. Otherwise, Python closes the loop's generator:
        it adds the frame to the exception's traceback before it drops the loop's iterator, and nothing else refers
        to the exception yet. Tracebacks of exceptions that the training code has caught are at other instructions.
        """
        error, frame = sys.exc_info()[1], self._frame
        if frame is None or not isinstance(error, GeneratorExit):
            return error is not None
        found = [item for item in gc.get_referrers(frame) if type(item) is TracebackType and item.tb_frame is frame]
        raised_again = dis.opname[frame.f_code.co_code[frame.f_lasti]] == "RERAISE"
        return any(raised_again or item.tb_lasti == frame.f_lasti for item in found)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_PACKAGE)
