"""A loop that the training code leaves is closed at once, whichever built-in function holds it."""

import gc

import pytest

from paceline.train import Kept, checkpoint, track, track_epochs

HOLDERS = {
    "enumerate": enumerate,
    "zip": lambda loop: zip(loop, range(9), strict=False),
    "map": lambda loop: map(str, loop),
    "generator": lambda loop: (batch for batch in loop),
    "none": iter,
}


class BodyError(Exception):
    """An error in the body of the loop."""


@pytest.fixture
def without_gc():
    """Disable the collection of cycles: only the end of the last reference releases an object."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_gc")
@pytest.mark.parametrize("end", ["break", "error"])
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("loop", [lambda: track(range(9)), lambda: track_epochs(9)], ids=["track", "track_epochs"])
def test_loop_that_is_left_is_closed_at_once(tmp_path, session, loop, holder, end):
    checkpoint(state=Kept(value=1), path=tmp_path)
    try:
        for _ in HOLDERS[holder](loop()):
            assert session.loop or session.epochs
            if end == "error":
                raise BodyError
            break
    except BodyError:
        pass
    assert session.loop is session.epochs is None
