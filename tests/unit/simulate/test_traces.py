"""Traces of both formats are read with measured speeds, and invalid values are rejected by name."""

from itertools import pairwise

import pytest

from paceline.errors import InvalidInputError
from paceline.simulate.cluster.traces import read_throughputs, read_trace, resample

TABLE = "global_batch_size,1,2,4,8\n64,10,18,30,\n128,6,11,20,28\n"
ELASTICFLOW = (
    "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
    "b,200,600,resnet50,260,128,4,30\n"
    "a,100,50,resnet50,150,64,2,3\n"
)
PHILLY = (
    "job_id,submit_time,real_iteration,model_name,ddl,batch_size,num_gpu,real_duration\n0,7,1200,resnet50,90,64,1,120\n"
)
POLLUX = "name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,64\n"


@pytest.fixture
def tables(tmp_path):
    (tmp_path / "resnet50.csv").write_text(TABLE)
    (tmp_path / "cifar10.csv").write_text(TABLE)
    return read_throughputs(tmp_path)


def write_trace(tmp_path, text):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    return file


def test_throughputs_have_model_and_batch_size_and_no_empty_cells(tables):
    assert tables["resnet50", 64].counts == (1, 2, 4)
    assert tables["resnet50", 128].at(8) == 28


def test_arrivals_and_deadlines_are_ordered_and_relative_to_first_job(tmp_path, tables):
    first, second = read_trace(write_trace(tmp_path, ELASTICFLOW), tables)
    assert (first.arrives_s, first.deadline_s, first.work, first.requested) == (0.0, 50.0, 50.0, 2)
    assert (second.arrives_s, second.deadline_s) == (100.0, 160.0)
    assert second.speeds["device"] is tables["resnet50", 128]


def test_byte_order_mark_of_a_spreadsheet_is_not_part_of_the_first_column(tmp_path, tables):
    rows = [line.partition(",")[2] for line in ELASTICFLOW.splitlines()]
    text = "\n".join(rows) + "\n"  # submission_time is the first column
    (tmp_path / "trace.csv").write_text(text, encoding="utf-8-sig")
    first, second = read_trace(tmp_path / "trace.csv", tables)
    assert (first.arrives_s, second.arrives_s) == (0.0, 100.0)


def test_philly_columns_and_pollux_applications_are_read(tmp_path, tables):
    (only,) = read_trace(write_trace(tmp_path, PHILLY), tables)
    assert (only.work, only.deadline_s) == (1200.0, 83.0)
    (only,) = read_trace(write_trace(tmp_path, POLLUX), tables)
    assert (only.work, only.deadline_s) == (pytest.approx(0.5 * 3600 * 10), None)


def test_job_with_an_empty_deadline_has_none_and_a_missing_column_is_an_error(tmp_path, tables):
    first, second = read_trace(write_trace(tmp_path, ELASTICFLOW.replace("resnet50,150", "resnet50,")), tables)
    assert (first.deadline_s, second.deadline_s) == (None, 160.0)
    with pytest.raises(InvalidInputError, match=r"line 2, deadline: got '', expected a value in a column deadline"):
        list(read_trace(write_trace(tmp_path, ELASTICFLOW.replace("deadline", "due")), tables))


def test_trace_can_be_resampled_reproducibly_to_any_length(tmp_path, tables):
    original = list(read_trace(write_trace(tmp_path, ELASTICFLOW), tables))
    many = list(resample(original, 50, seed=3))
    assert many == list(resample(original, 50, seed=3)) != list(resample(original, 50, seed=4))
    assert [one.name for one in many] == [str(number) for number in range(50)]
    assert {one.deadline_s - one.arrives_s for one in many} == {50.0, 60.0}
    assert all(later.arrives_s - one.arrives_s == 100.0 for one, later in pairwise(many))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ELASTICFLOW.replace("resnet50,260,128", "resnet50,260,99"), "line 2, model and batch size"),
        (ELASTICFLOW.replace("resnet50,150", "alexnet,150"), "alexnet 64"),
        (ELASTICFLOW.replace("num_gpu", "gpus"), "line 2, num_gpu"),
        (ELASTICFLOW.replace("600", "many"), "line 2, num_iteration: got 'many'"),
        (POLLUX.replace("cifar10,6", "chess,6"), "chess"),
        ("name,time\n", "at least one job"),
    ],
)
def test_invalid_trace_error_names_value(tmp_path, tables, text, message):
    with pytest.raises(InvalidInputError, match=message):
        list(read_trace(write_trace(tmp_path, text), tables))


@pytest.mark.parametrize("tables", [{}, {"x.csv": "batch,1\n64,2\n"}])
def test_folder_without_tables_is_rejected(tmp_path, tables):
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInputError):
        read_throughputs(tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("a,100", "a,nan", "line 3, submission_time: got 'nan', expected a number"),
        ("150,64", "150,inf", "line 3, batch_size: got 'inf', expected a number"),
        ("64,2,", "64,nan,", "line 3, num_gpu: got 'nan', expected a number"),
        ("64,2,", "64,-1,", "line 3, num_gpu: got -1.0, expected a whole number, 1 or more"),
        ("150,64", "150,64.7", "line 3, batch_size: got 64.7, expected a whole number, 1 or more"),
        ("100,50", "100,0", "line 3, num_iteration: got 0.0, expected a number above 0"),
        ("job_id", "\N{LATIN SMALL LETTER E WITH ACUTE}", "trace.csv', expected a readable CSV file"),
    ],
)
def test_unusable_cell_of_a_trace_is_named(tmp_path, tables, before, after, message):
    file = tmp_path / "trace.csv"
    file.write_text(ELASTICFLOW.replace(before, after), encoding="latin-1")
    with pytest.raises(InvalidInputError, match=message):
        list(read_trace(file, tables))


@pytest.mark.parametrize("field", ["time", "num_replicas", "batch_size"])
def test_unusable_cell_of_a_pollux_trace_is_named(tmp_path, tables, field):
    row = dict(zip(*(line.split(",") for line in POLLUX.splitlines()), strict=True)) | {field: "many"}
    with pytest.raises(InvalidInputError, match=f"trace.csv line 2, {field}: got 'many', expected a number"):
        list(read_trace(write_trace(tmp_path, f"{','.join(row)}\n{','.join(row.values())}\n"), tables))


@pytest.mark.parametrize("field", ["num_replicas", "batch_size"])
def test_count_of_a_pollux_trace_is_a_whole_number(tmp_path, tables, field):
    row = dict(zip(*(line.split(",") for line in POLLUX.splitlines()), strict=True)) | {field: "0"}
    with pytest.raises(InvalidInputError, match=f"trace.csv line 2, {field}: got 0.0, expected a whole number"):
        list(read_trace(write_trace(tmp_path, f"{','.join(row)}\n{','.join(row.values())}\n"), tables))


def test_second_row_with_the_same_batch_size_is_rejected(tmp_path):
    (tmp_path / "resnet50.csv").write_text("global_batch_size,1,2\n64,10,18\n64,11,19\n")
    with pytest.raises(InvalidInputError, match=r"resnet50.csv, batch size: got '64', expected one row for each"):
        read_throughputs(tmp_path)


@pytest.mark.parametrize("table", ["1,x\n64,10,18\n", "1,2\n64,10,fast\n", "1,2\n,10,18\n", "1,2\n64,10,18,20\n"])
def test_unusable_table_of_throughputs_is_named(tmp_path, table):
    (tmp_path / "resnet50.csv").write_text(f"global_batch_size,{table}")
    with pytest.raises(InvalidInputError, match=r"resnet50.csv, batch size .*expected columns named by a number of"):
        read_throughputs(tmp_path)
