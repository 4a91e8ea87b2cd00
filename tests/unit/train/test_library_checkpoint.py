"""Checkpoints whose files a library writes."""

import pytest

from paceline.train.saving.checkpoint import Position
from paceline.train.saving.library import LibraryCheckpoint


def make_checkpoint(folder, content="", name="model"):
    def write(temporary):
        (temporary / "parts").mkdir()
        (temporary / "parts" / name).write_text(content)

    return LibraryCheckpoint(write, folder, None)


def save(folder, done):
    position = Position(loop=0, epoch=0, batch=done, done=done, total=9, epoch_length=9)
    return make_checkpoint(folder, str(done)).save(position, {}, {"state": [done]}, {"loss": 0.5})


def restore(folder):
    """Return the number of steps done, and the content of the library's file."""
    saver = make_checkpoint(folder)
    restored = saver.restore()
    if restored is None:
        assert saver.resume is None
        return None
    assert saver.resume.now == {"state": [saver.resume.position.done]}
    assert saver.resume.reported == {"loss": 0.5}
    return saver.resume.position.done, (restored / "parts" / "model").read_text()


@pytest.fixture
def saved(tmp_path):
    """A folder with the checkpoints after steps 1 to 3, of which the newest two stay."""
    for done in (1, 2, 3):
        assert save(tmp_path, done)
    return tmp_path


def test_newest_checkpoint_is_restored_and_the_two_newest_are_kept(saved):
    assert restore(saved) == (3, "3")
    assert sorted(path.name for path in saved.iterdir()) == ["checkpoint-000002", "checkpoint-000003"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda newest: (newest / "parts" / "model").write_text("4"),
        lambda newest: (newest / "parts" / "model").unlink(),
        lambda newest: (newest / "point.json").write_text("{"),
        lambda newest: (newest / "point.json").write_text('{"format": 0}'),
        lambda newest: (newest / "point.json").unlink(),
    ],
    ids=["changed file", "missing file", "truncated point", "other format", "missing point"],
)
def test_previous_checkpoint_is_restored_if_the_newest_is_damaged(saved, capsys, damage):
    damage(saved / "checkpoint-000003")
    assert restore(saved) == (2, "2")
    assert "checkpoint-000003 is unusable, trying the previous checkpoint" in capsys.readouterr().err


def test_training_without_a_usable_checkpoint_starts_from_the_beginning(saved, capsys):
    for path in saved.glob("*/point.json"):
        path.unlink()
    assert restore(saved) is None
    assert "starting from the beginning" in capsys.readouterr().err


def test_process_killed_while_it_saves_leaves_no_checkpoint(saved):
    def write(temporary):
        (temporary / "model").write_text("incomplete")
        raise KeyboardInterrupt

    saver = LibraryCheckpoint(write, saved, None)
    with pytest.raises(KeyboardInterrupt):
        saver.save(Position(0, 0, 4, 4, 9, 9), {}, {}, {})
    (saved / ".checkpoint.tmp").mkdir()  # after SIGKILL, the folder stays
    (saved / ".checkpoint.tmp" / "model").write_text("incomplete")
    assert restore(saved) == (3, "3")
    assert not (saved / ".checkpoint.tmp").exists()
    assert save(saved, 5)
    assert restore(saved) == (5, "5")


def test_training_continues_if_the_disk_is_full(saved, capsys):
    def write(temporary):
        raise OSError(28, "No space left on device")

    saver = LibraryCheckpoint(write, saved, None)
    assert not saver.save(Position(0, 0, 4, 4, 9, 9), {}, {}, {})
    assert "training continues: [Errno 28] No space left on device" in capsys.readouterr().err
    assert restore(saved) == (3, "3")


def test_folder_that_is_a_file_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="expected a writable folder"):
        make_checkpoint(tmp_path / "file")
