"""``paceline simulate`` compares policies on a workload reproducibly, and reports invalid input."""

import csv
import io
import json

import pytest

from paceline.airflow.cli import main
from paceline.simulate.past import PastJob, write_jobs


def simulate(*arguments):
    return main(["simulate", *arguments])


def test_policies_are_compared_on_generated_workload(tmp_path, capsys):
    figures, picture = tmp_path / "figures.json", tmp_path / "pictures" / "queue.png"
    args = ("modelarts", "--jobs", "30", "--nodes", "8", "--policy", "fifo", "--policy", "greedy", "--policy", "milp")
    assert simulate(*args, "--json", str(figures), "--picture", str(picture)) == 0
    heading, *rows, last = capsys.readouterr().out.splitlines()
    assert heading.startswith("POLICY")
    assert [row.split()[:4] for row in rows] == [[name, "30", "of", "30"] for name in ("fifo", "greedy", "milp")]
    assert last == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    fifo, greedy, milp = json.loads(figures.read_text())
    assert fifo["mean_queue_s"] > greedy["mean_queue_s"]  # the fifo policy does not shrink running jobs
    assert milp["done"] == 30
    assert simulate(*args, "--json", str(tmp_path / "again.json")) == 0
    assert (tmp_path / "again.json").read_text() == figures.read_text()


def test_generated_deadlines_are_counted(capsys):
    args = ("modelarts-deadlines", "--jobs", "30", "--nodes", "8", "--policy", "fifo", "--policy", "on_time")
    assert simulate(*args) == 0
    fifo, on_time = (float(line.split()[4]) for line in capsys.readouterr().out.splitlines()[1:3])
    assert 0 < fifo < on_time


def test_energy_costs_of_heterogeneous_nodes_are_printed(capsys):
    assert simulate("andreas-small", "--nodes", "4", "--jobs", "12", "--policy", "edf", "--policy", "rg") == 0
    edf, rg = (line.split() for line in capsys.readouterr().out.splitlines()[1:3])
    assert 0 < float(rg[-3]) < 0.7 * float(edf[-3])


@pytest.mark.parametrize("workload", ["andreas-small", "modelarts"])
def test_times_of_generated_jobs_count_from_the_first_arrival(workload, tmp_path, capsys):
    jobs = tmp_path / "jobs.csv"
    assert simulate(workload, "--nodes", "16", "--jobs", "3", "--policy", "fifo", "--outcomes", str(jobs)) == 0
    assert min(float(row["arrived_s"]) for row in csv.DictReader(jobs.open())) == 0.0


def test_published_trace_is_simulated_with_its_throughputs(tmp_path, capsys):
    (tmp_path / "resnet50.csv").write_text("global_batch_size,1,2\n64,10,18\n")
    trace = tmp_path / "trace"
    trace.write_text(
        "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
        "a,100,50,resnet50,106,64,2,3\nb,101,50,resnet50,107,64,2,3\n"
    )
    assert simulate(str(trace), "--nodes", "2", "--throughputs", str(tmp_path)) == 0
    edf, on_time = (line.split() for line in capsys.readouterr().out.splitlines()[1:3])
    assert (edf[0], edf[4], on_time[0], on_time[4]) == ("edf", "100.0", "on_time", "100.0")
    assert simulate(str(trace)) == 1
    assert "--throughputs" in capsys.readouterr().err


def test_rejected_jobs_and_broken_promises_are_counted(tmp_path, capsys):
    (tmp_path / "resnet50.csv").write_text("global_batch_size,1\n64,10\n")
    trace, jobs = tmp_path / "trace", tmp_path / "outcomes" / "jobs.csv"
    rows = ["a,0,100,resnet50,12,64,1,10", "b,0,100,resnet50,15,64,1,10"]
    trace.write_text(
        "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
        + "\n".join(rows)
        + "\n"
    )
    figures = tmp_path / "figures.json"
    policies = ("elasticflow", "on_time_promises", "edf")
    arguments = [argument for policy in policies for argument in ("--policy", policy)]
    options = ("--nodes", "1", "--throughputs", str(tmp_path), "--json", str(figures), "--slot", "1")
    assert simulate(str(trace), *arguments, *options, "--outcomes", str(jobs)) == 0
    by_job = list(csv.DictReader(jobs.open()))
    assert [(row["policy"], row["name"], row["status"], row["met"]) for row in by_job] == [
        ("elasticflow", "1", "rejected", "False"), ("elasticflow", "0", "done", "True"),
        ("on_time_promises", "0", "done", "True"), ("on_time_promises", "1", "done", "False"),
        ("edf", "0", "done", "True"), ("edf", "1", "done", "False"),
    ]  # fmt: skip
    assert (by_job[-1]["arrived_s"], by_job[-1]["started_s"], by_job[-1]["departed_s"]) == ("0.0", "10.0", "20.0")
    heading, *lines = capsys.readouterr().out.splitlines()
    assert "REJECTED  ACCEPTED LATE" in heading
    assert [line.split()[0] for line in lines] == list(policies)
    rows = json.loads(figures.read_text())
    assert [row["policy"] for row in rows] == list(policies)
    assert [row["deadlines_met"] for row in rows] == [1, 1, 1]
    assert [(row["done"], row["rejected"], row["accepted_late"]) for row in rows] == [(1, 1, 0), (2, 0, 0), (2, 0, 1)]
    assert simulate(str(trace), "--policy", "elasticflow", "--elasticflow-overhead", *options) == 0
    (late,) = json.loads(figures.read_text())
    assert (late["rejected"], late["deadlines_met"], late["accepted_late"]) == (1, 0, 1)  # the start takes 4 s


def test_progress_bar_is_drawn_only_on_a_terminal(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    arguments = ("modelarts", "--jobs", "3", "--nodes", "8", "--policy", "fifo")
    assert simulate(*arguments) == 0
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert simulate(*arguments) == 0
    assert "fifo" in terminal.getvalue()


def test_help_says_when_a_number_of_nodes_is_required(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")  # no line breaks within options
    with pytest.raises(SystemExit):
        simulate("--help")
    help_text = " ".join(capsys.readouterr().out.split())
    assert "default: 100, but none for past trainings, of --from-airflow or a file" in help_text
    jobs = tmp_path / "jobs.csv"
    job = PastJob(
        name="a", arrives_s=0.0, deadline_s=None, work_s=4.0, exponent=1.0, fixed_s=0.0, usable_devices=None,
        min_devices=1.0, max_devices=1.0, quantum=1.0, priority_weight=1,
    )  # fmt: skip
    write_jobs([job], jobs)
    assert simulate(str(jobs)) == 1
    assert "--nodes: got None, expected the number of cores or devices in the pool" in capsys.readouterr().err
    assert simulate("modelarts", "--jobs", "3") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.csv"], "TRACE: got 'nothing.csv'"),
        (["modelarts", "--policy", "best"], "--policy: got 'best'"),
        (["modelarts", "--nodes", "0"], "--nodes: got 0"),
        (["modelarts", "--pause", "-1"], "pause_s: got -1.0"),
        (["modelarts", "--jobs", "0"], "--jobs: got 0"),
        (["modelarts", "--jobs", "448"], "--jobs: got 448, expected at most 447, the jobs of modelarts"),
        (["modelarts", "--jobs", "1", "--json", "/"], "--json: got '/', expected a file that can be written"),
        (["modelarts", "--jobs", "1", "--picture", "queue"], "--picture: got 'queue', expected a file with a suffix"),
    ],
)
def test_invalid_input_is_reported_on_one_line(arguments, message, capsys):
    assert simulate(*arguments) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
