"""The state of a training in several processes that come and go: whatever becomes of them, each update counts once."""

import subprocess
import threading
import time

import pytest
import torch

from paceline.train.asynchronous.part import HeldShard, PartServer
from paceline.train.asynchronous.peer import reach
from paceline.train.job import EXIT_BROKEN

from .machines import INCLUDE, LIMIT_S, SAMPLES, joined

EPOCHS = 8


def hold_in_a_thread(address, name="ps-1"):
    """A process that holds a part, in a thread."""
    part = PartServer(name, address, "127.0.0.1")
    thread = threading.Thread(target=part.run, daemon=True)
    thread.start()
    return part, thread


def join(thread):
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def once(true):
    """Wait for what another thread does; return it."""
    give_up_s = time.monotonic() + LIMIT_S
    while (found := true()) is None:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    return found


def has_parts(number):
    return lambda server: server.progress and server.newest.metrics.get("servers", 1) == number


def test_a_part_of_the_state_comes_and_goes_twenty_times_and_no_update_is_lost(train):
    training = train("a", "b", "c", epochs=EPOCHS)
    workers = training.work_together("abc")
    for number in range(1, 21):
        part, thread = hold_in_a_thread(training.address, f"ps-{number}")
        before = once(part._part.read)
        for worker in workers:
            worker.hold(after=number)
        once(lambda part=part, before=before: None if torch.equal(part._part.read(), before) else True)
        part.leave()  # while what others have learned is on its way
        join(thread)
    assert training.server.newest.done < EPOCHS * SAMPLES, "all of it while they trained"
    _, stays = hold_in_a_thread(training.address, "ps-21")
    training.server.until(has_parts(2))
    training.finish(workers)
    join(stays)  # it is let go at the end
    assert training.server.said.count("holds a part of the state;") == 21
    assert all("lost" not in machine.said for machine in (training.server, *workers))


def test_a_process_with_a_part_that_is_asked_to_end_gives_it_back_first(train):
    training = train("a", "b", epochs=EPOCHS)
    workers = training.work_together("ab")
    parts = [training.hold_part(f"ps-{number}") for number in (1, 2, 3)]
    training.server.until(has_parts(4))
    for left, part in enumerate(parts, start=1):
        for worker in workers:
            worker.hold(after=10 * left)
        part.process.terminate()
        assert part.end() == 0, part.said
        training.server.until(has_parts(4 - left))
    training.finish(workers)
    assert "lost" not in training.server.said, "nobody is blamed for what has left"


def test_a_part_that_is_asked_to_end_before_it_has_found_the_server_just_ends():
    part, thread = hold_in_a_thread("127.0.0.1:1")
    part.leave()
    join(thread)


def test_a_change_of_a_wrong_length_or_for_other_ranges_does_not_count():
    kept = joined("a", batch_size=4)
    assert kept.lend("a", 0)["kind"] == "order"
    kept.begin_epoch("a", 0, [0, 1, 2])
    number, version = kept.lend("a", 0)["number"], kept.own()[0]["version"]
    with pytest.raises(ValueError, match="change: got 1 numbers, expected 3"):
        kept.take_in("a", 0, number, version, torch.ones(1), {})
    assert kept.take_in("a", 0, number, version + 1, torch.ones(3), {}) is None
    assert kept.progress("progress").done == 0
    assert kept.take_in("a", 0, number, version, torch.ones(3), {})
    assert kept.snapshot().tolist() == [1.0, 1.0, 1.0]


def test_a_part_that_is_killed_sends_all_back_to_what_was_saved_and_the_rest_is_trained_again(train):
    training = train("a", "b", epochs=EPOCHS)
    workers = training.work_together("ab")
    part = training.hold_part("ps-1")
    training.server.until(has_parts(2))
    for worker in workers:
        worker.hold(after=20)
    training.server.until_done(40 * 3)
    part.kill()
    for worker in workers:
        worker.hold(after=30)
    assert training.server.end() == EXIT_BROKEN, training.server.said
    assert "a part of the state is lost" in training.server.said
    training.serve()
    training.finish(workers)


def test_what_is_sent_for_a_part_counts_once_when_it_is_asked_to():
    part = HeldShard()
    with pytest.raises(ValueError, match="change: got 2 numbers, expected 0 at most"):
        part.room(2)
    part.hold(1, torch.zeros(2), whole=4)
    assert part.take("a", 1, 7, torch.ones(2))
    assert not part.take("b", 0, 8, torch.ones(2)), "for what was held before"
    assert not part.take("b", 1, 8, torch.ones(3))
    assert part.commit("a", 7)
    assert not part.commit("a", 7)
    assert not part.commit("b", 8)
    assert part.read(1).tolist() == [1.0, 1.0]
    assert part.read(2) is None
    with pytest.raises(ValueError, match="not finite"):
        part.take("a", 1, 9, torch.tensor([1.0, float("nan")]))
    with pytest.raises(ValueError, match="change: got 5 numbers, expected 4 at most"):
        part.room(5)


def test_who_has_not_the_key_gets_nothing_from_a_part_and_nonsense_costs_the_connection():
    server = PartServer("ps-1", "127.0.0.1:1", "127.0.0.1", b"secret")
    port = server.port
    with pytest.raises(Exception, match="key"):
        reach("127.0.0.1", port, b"another")
    for words in ({"kind": "pull"}, {"kind": "steal"}, {"worker": "a"}, [1, 2]):
        peer = reach("127.0.0.1", port, b"secret")
        peer.send({"worker": "a"})
        peer.send(words)
        with pytest.raises(Exception, match=r"ended|reset"):
            peer.receive()
        peer.close()


def test_a_part_that_finds_no_server_says_so(capsys):
    assert PartServer("ps-1", "127.0.0.1:1", "127.0.0.1", patience_s=0.1).run() == 6
    assert "no parameter server at 127.0.0.1:1" in capsys.readouterr().err
    with pytest.raises(ValueError, match="PACELINE_SERVER: got 'nowhere'"):
        PartServer("ps-1", "nowhere", "127.0.0.1")


def test_a_server_ends_with_its_code_whatever_its_guests_threads_are_at(fork):
    program = """
import threading
from paceline.train.asynchronous.handshake import end_process

threading.Thread(target=threading.Event().wait).start()  # Python's own way out would wait for it, for ever
print("its last word", end="")
end_process(8)
"""
    ended = fork(["-c", program], env={"PYTHONPATH": str(INCLUDE)}, stdout=subprocess.PIPE)
    assert (ended.stdout.read(), ended.wait(LIMIT_S)) == ("its last word", 8)
