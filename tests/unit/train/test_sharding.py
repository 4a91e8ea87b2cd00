"""The state of a training in several processes that join and leave or die: each update counts once."""

import subprocess
import threading
import time

import pytest
import torch

from paceline.train.asynchronous.peer import reach
from paceline.train.asynchronous.state_shard import HeldShard, ShardServer
from paceline.train.job import EXIT_STATE_LOST

from .machines import INCLUDE, LIMIT_S, SAMPLES, joined_training

EPOCHS = 8


def start_holder_thread(address, name="ps-1"):
    """Start a holder of the state in a thread."""
    part = ShardServer(name, address, "127.0.0.1")
    thread = threading.Thread(target=part.run, daemon=True)
    thread.start()
    return part, thread


def join(thread):
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def wait_for(condition):
    """Wait for another thread to produce a value; return it."""
    give_up_s = time.monotonic() + LIMIT_S
    while (found := condition()) is None:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    return found


def has_servers(number):
    return lambda server: server.progress and server.newest.metrics.get("servers", 1) == number


def test_no_update_is_lost_when_a_holder_joins_and_leaves_often(train):
    training = train("a", "b", "c", epochs=EPOCHS)
    workers = training.work_together("abc")
    for number in range(1, 21):
        part, thread = start_holder_thread(training.address, f"ps-{number}")
        before = wait_for(part._shard.read)
        for worker in workers:
            worker.hold(after=number)
        wait_for(lambda part=part, before=before: None if torch.equal(part._shard.read(), before) else True)
        part.leave()  # while changes of the workers are in flight
        join(thread)
    assert training.server.newest.done < EPOCHS * SAMPLES, "all while they trained"
    _, stays = start_holder_thread(training.address, "ps-21")
    training.server.until(has_servers(2))
    training.finish(workers)
    join(stays)  # the server releases it at the end
    assert training.server.log.count("holds a shard of the state;") == 21
    assert all("lost" not in machine.log for machine in (training.server, *workers))


def test_holder_returns_its_shard_on_sigterm(train):
    training = train("a", "b", epochs=EPOCHS)
    workers = training.work_together("ab")
    parts = [training.start_holder(f"ps-{number}") for number in (1, 2, 3)]
    training.server.until(has_servers(4))
    for left, part in enumerate(parts, start=1):
        for worker in workers:
            worker.hold(after=10 * left)
        part.process.terminate()
        assert part.end() == 0, part.log
        training.server.until(has_servers(4 - left))
    training.finish(workers)
    assert "lost" not in training.server.log, "a holder that leaves counts no failure"


def test_holder_without_a_server_ends_on_leave():
    part, thread = start_holder_thread("127.0.0.1:1")
    part.leave()
    join(thread)


def test_change_of_wrong_length_or_version_is_not_applied():
    training = joined_training("a", batch_size=4)
    assert training.lend("a", 0)["kind"] == "order"
    training.begin_epoch("a", 0, [0, 1, 2])
    number, version = training.lend("a", 0)["number"], training.own_range()[0]["version"]
    with pytest.raises(ValueError, match="change: got 1 numbers, expected 3"):
        training.apply_change("a", 0, number, version, torch.ones(1), {})
    assert training.apply_change("a", 0, number, version + 1, torch.ones(3), {}) is None
    assert training.progress("progress").done == 0
    assert training.apply_change("a", 0, number, version, torch.ones(3), {})
    assert training.snapshot().tolist() == [1.0, 1.0, 1.0]


def test_training_resumes_from_the_checkpoint_after_a_holder_is_killed(train):
    training = train("a", "b", epochs=EPOCHS)
    workers = training.work_together("ab")
    part = training.start_holder("ps-1")
    training.server.until(has_servers(2))
    for worker in workers:
        worker.hold(after=20)
    training.server.until_done(40 * 3)
    part.kill()
    for worker in workers:
        worker.hold(after=30)
    assert training.server.end() == EXIT_STATE_LOST, training.server.log
    assert "a shard of the state is lost" in training.server.log
    training.serve()
    training.finish(workers)


def test_held_shard_adds_a_change_once_at_its_commit():
    part = HeldShard()
    with pytest.raises(ValueError, match="change: got 2 numbers, expected 0 at most"):
        part.allocate(2)
    part.hold(1, torch.zeros(2), total_size=4)
    assert part.store("a", 1, 7, torch.ones(2))
    assert not part.store("b", 0, 8, torch.ones(2)), "for a previous shard"
    assert not part.store("b", 1, 8, torch.ones(3))
    assert part.commit("a", 7)
    assert not part.commit("a", 7)
    assert not part.commit("b", 8)
    assert part.read(1).tolist() == [1.0, 1.0]
    assert part.read(2) is None
    with pytest.raises(ValueError, match="not finite"):
        part.store("a", 1, 9, torch.tensor([1.0, float("nan")]))
    with pytest.raises(ValueError, match="change: got 5 numbers, expected 4 at most"):
        part.allocate(5)


def test_holder_rejects_wrong_keys_and_malformed_messages():
    server = ShardServer("ps-1", "127.0.0.1:1", "127.0.0.1", b"secret")
    port = server.port
    with pytest.raises(Exception, match="key"):
        reach("127.0.0.1", port, b"another")
    for message in ({"kind": "pull"}, {"kind": "steal"}, {"worker": "a"}, [1, 2]):
        peer = reach("127.0.0.1", port, b"secret")
        peer.send({"worker": "a"})
        peer.send(message)
        with pytest.raises(Exception, match=r"ended|reset"):
            peer.receive()
        peer.close()


def test_holder_reports_a_missing_server(capsys):
    assert ShardServer("ps-1", "127.0.0.1:1", "127.0.0.1", patience_s=0.1).run() == 6
    assert "no parameter server at 127.0.0.1:1" in capsys.readouterr().err
    with pytest.raises(ValueError, match="PACELINE_SERVER: got 'nowhere'"):
        ShardServer("ps-1", "nowhere", "127.0.0.1")


def test_end_process_keeps_the_exit_code_with_running_threads(fork):
    program = """
import threading
from paceline.train.asynchronous.handshake import end_process

threading.Thread(target=threading.Event().wait).start()  # Python's own exit would wait for it forever
print("its last word", end="")
end_process(8)
"""
    ended = fork(["-c", program], env={"PYTHONPATH": str(INCLUDE)}, stdout=subprocess.PIPE)
    assert (ended.stdout.read(), ended.wait(LIMIT_S)) == ("its last word", 8)
