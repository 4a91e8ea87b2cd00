"""The model's state is sharded over processes that join, leave or die. Each update of the state counts once."""

import subprocess
import threading
import time

import pytest
import torch

from paceline.train.job import EXIT_STATE_LOST
from paceline.train.parameter_server.peer import connect
from paceline.train.parameter_server.state_shard import HeldShard, ShardServer

from .machines import INCLUDE, LIMIT_S, SAMPLES, make_joined_training

EPOCHS = 8


def start_holder_thread(address, name="ps-1"):
    """Start a holder of a state shard in a thread."""
    holder = ShardServer(name, address, "127.0.0.1")
    thread = threading.Thread(target=holder.run, daemon=True)
    thread.start()
    return holder, thread


def join_thread(thread):
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def wait_for(condition):
    """Wait until ``condition`` returns a value other than None, and return the value."""
    time_limit_s = time.monotonic() + LIMIT_S
    while (value := condition()) is None:
        assert time.monotonic() < time_limit_s
        time.sleep(0.001)
    return value


def has_number_of_servers(number):
    return lambda server: server.progress and server.newest_progress.metrics.get("servers", 1) == number


def test_no_update_is_lost_when_holders_join_and_leave_often(start_training):
    training = start_training("a", "b", "c", epochs=EPOCHS)
    workers = training.start_workers("abc")
    for number in range(1, 21):
        holder, thread = start_holder_thread(training.address, f"ps-{number}")
        before = wait_for(holder._shard.read)
        for worker in workers:
            worker.hold(after=number)
        wait_for(lambda holder=holder, before=before: None if torch.equal(holder._shard.read(), before) else True)
        holder.leave()  # meanwhile, the workers send changes
        join_thread(thread)
    assert training.server.newest_progress.done < EPOCHS * SAMPLES, "all holders left during the training"
    _, stays = start_holder_thread(training.address, "ps-21")
    training.server.wait_until(has_number_of_servers(2))
    training.finish_and_check(workers)
    join_thread(stays)  # the server ends the holder at the end of the job
    assert training.server.log.count("holds a shard of the state,") == 21
    assert all("lost" not in machine.log for machine in (training.server, *workers))


def test_holder_returns_its_shard_on_sigterm(start_training):
    training = start_training("a", "b", epochs=EPOCHS)
    workers = training.start_workers("ab")
    holders = [training.start_holder(f"ps-{number}") for number in (1, 2, 3)]
    training.server.wait_until(has_number_of_servers(4))
    for left, holder in enumerate(holders, start=1):
        for worker in workers:
            worker.hold(after=10 * left)
        holder.process.terminate()
        assert holder.wait_for_end() == 0, holder.log
        training.server.wait_until(has_number_of_servers(4 - left))
    training.finish_and_check(workers)
    assert "lost" not in training.server.log, "a holder that leaves is not a failure"


def test_leave_ends_a_holder_that_has_no_server():
    holder, thread = start_holder_thread("127.0.0.1:1")
    holder.leave()
    join_thread(thread)


def test_change_with_the_wrong_length_or_version_is_not_applied():
    training = make_joined_training("a", batch_size=4)
    assert training.next_message("a", 0)["kind"] == "order"
    training.start_epoch("a", 0, [0, 1, 2])
    number, version = training.next_message("a", 0)["number"], training.state.own_range()[0]["version"]
    with pytest.raises(ValueError, match="change: got 1 numbers, expected 3"):
        training.apply_change("a", 0, number, version, torch.ones(1), {})
    assert training.apply_change("a", 0, number, version + 1, torch.ones(3), {}) is None
    assert training.progress("progress").done == 0
    assert training.apply_change("a", 0, number, version, torch.ones(3), {})
    assert training.state.snapshot().tolist() == [1.0, 1.0, 1.0]


def test_job_resumes_from_its_checkpoint_after_a_holder_is_killed(start_training):
    training = start_training("a", "b", epochs=EPOCHS)
    workers = training.start_workers("ab")
    holder = training.start_holder("ps-1")
    training.server.wait_until(has_number_of_servers(2))
    for worker in workers:
        worker.hold(after=20)
    training.server.wait_until_done(40 * 3)
    holder.kill()
    for worker in workers:
        worker.hold(after=30)
    assert training.server.wait_for_end() == EXIT_STATE_LOST, training.server.log
    assert "a shard of the state is lost" in training.server.log
    training.start_server()
    for name in "ab":  # one worker alone might end the training before the other connects again
        training.server.wait_until_logged(f"{name} has joined")
    training.finish_and_check(workers)


def test_held_shard_applies_an_update_once_when_it_is_committed():
    holder = HeldShard()
    with pytest.raises(ValueError, match="change: got 2 numbers, expected at most 0"):
        holder.allocate(2)
    holder.replace(1, torch.zeros(2), total_size=4, summed=1)
    assert holder.store("a", 1, 7, torch.ones(2))
    assert not holder.store("b", 0, 8, torch.ones(2)), "for a previous shard"
    assert not holder.store("b", 1, 8, torch.ones(3))
    assert holder.commit("a", 7, staleness=3)
    assert not holder.commit("a", 7, staleness=0)
    assert not holder.commit("b", 8, staleness=0)
    assert holder.read(1).tolist() == [1.0, 0.5], "changes of number 1 add up, those of number 2 are averaged"
    assert holder.read(2) is None
    with pytest.raises(ValueError, match="not finite"):
        holder.store("a", 1, 9, torch.tensor([1.0, float("nan")]))
    with pytest.raises(ValueError, match="change: got 5 numbers, expected at most 4"):
        holder.allocate(5)


def test_holder_rejects_wrong_keys_and_malformed_messages():
    server = ShardServer("ps-1", "127.0.0.1:1", "127.0.0.1", b"secret")
    port = server.port
    with pytest.raises(Exception, match="key"):
        connect("127.0.0.1", port, b"another")
    for message in ({"kind": "pull"}, {"kind": "steal"}, {"worker": "a"}, [1, 2]):
        peer = connect("127.0.0.1", port, b"secret")
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


def test_end_process_keeps_the_exit_code_despite_running_threads(fork):
    program = """
import threading
from paceline.train.parameter_server.handshake import end_process

threading.Thread(target=threading.Event().wait).start()  # Python's own exit would wait for it forever
print("its last word", end="")
end_process(8)
"""
    ended = fork(["-c", program], env={"PYTHONPATH": str(INCLUDE)}, stdout=subprocess.PIPE)
    assert (ended.stdout.read(), ended.wait(LIMIT_S)) == ("its last word", 8)
