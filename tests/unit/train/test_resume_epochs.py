"""A job with a loop over epochs, killed anywhere and restarted, ends with the same state as an undisturbed one."""

import json
import os

import pytest

from .machines import HERE, INCLUDE

FORMS = {
    "each-batch": {"accumulate": 1},
    "accumulated": {"accumulate": 2},
    "accumulated-with-a-rest": {"accumulate": 3},
    "stopped": {"accumulate": 1, "stop_after": 2},
    "left": {"accumulate": 1, "batches": 2},
    "own-generator": {"accumulate": 1, "generator": True},
}
PLACES = ["1 begins", "1.0", "1.1", "1.3", "1 ends", "2 begins", "2.0", "2.1", "2.2", "2.3", "2 ends", "3.1", "3 ends"]
CODES = {"SIGTERM": 143, "SIGKILL": -9}


@pytest.fixture(scope="module")
def run_job(tmp_path_factory, fork):
    """Return a function that runs a form of the script with some kills; it returns codes, digest and places seen."""

    def run(form, kills=()):
        folder = tmp_path_factory.mktemp("lives")
        environment = {"PACELINE_OUTPUT": str(folder), "PACELINE_CHECKPOINT": str(folder / "checkpoint")}
        scenario = json.dumps(FORMS[form] | {"kills": list(kills)})
        codes = []
        for restarts in range(len(kills) + 1):
            command = [HERE / "lives_of_epochs.py", scenario, restarts]
            codes.append(fork(command, env=os.environ | environment | {"PYTHONPATH": str(INCLUDE)}).wait())
        seen = [(folder / f"seen-{restarts}").read_text().splitlines() for restarts in range(len(codes))]
        return codes, (folder / "digest").read_text(), seen

    return run


@pytest.fixture(scope="module")
def undisturbed(run_job):
    return {form: run_job(form) for form in FORMS}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("signal", CODES)
def test_job_killed_anywhere_ends_with_the_same_state(run_job, undisturbed, form, signal):
    _, digest, (all_places,) = undisturbed[form]
    for place in PLACES:
        if place not in all_places:
            continue
        codes, killed_digest, _ = run_job(form, [(signal, place)])
        assert codes in ([CODES[signal], 0], [0, 0]), place  # accumulated: the signal may meet the end
        assert codes[0] or signal == "SIGTERM"
        assert killed_digest == digest, place


def test_job_killed_several_times_ends_with_the_same_state(run_job, undisturbed):
    kills = [("SIGKILL", "1.1"), ("SIGTERM", "1 ends"), ("SIGTERM", "2.2"), ("SIGKILL", "2.3"), ("SIGKILL", "3 ends")]
    codes, digest, _ = run_job("each-batch", kills)
    assert codes == [*(CODES[signal] for signal, _ in kills), 0]
    assert digest == undisturbed["each-batch"][1]


def test_different_forms_end_with_different_states(undisturbed):
    """If all forms ended with the same state, a comparison of states would prove nothing."""
    digests = [digest for _, digest, _ in undisturbed.values()]
    assert len(set(digests)) == len(FORMS)


def test_finished_epochs_are_skipped_with_their_bodies(run_job):
    _, _, (first, second) = run_job("each-batch", [("SIGTERM", "2.1")])
    assert first[-1] == "2.1"
    assert second[:2] == ["2 begins", "2.2"]


def test_job_that_had_ended_trains_no_more(run_job):
    _, _, (_, second) = run_job("stopped", [("SIGTERM", "2 ends")])
    assert second == []


def test_accumulated_gradients_are_complete_at_each_checkpoint(run_job):
    _, _, (_, second) = run_job("accumulated-with-a-rest", [("SIGKILL", "2.2")])
    assert second[:2] == ["1 begins", "1.3"]  # a step follows batches 1.2 and 2.2, but not batch 1.3
