from paceline.contract import RunEvent, StoredHistory
from paceline.run import History


def test_small_loss_and_metrics_keep_their_digits() -> None:
    history = History()
    history.add({"mse": 0.00042}, t_s=12.3456, loss=0.000312345678, devices=1.0)
    stored = history.to_json()
    row = dict(zip(stored["columns"], stored["samples"][0], strict=True))
    assert (row["loss"], row["metric.mse"], row["t_s"]) == (0.000312346, 0.00042, 12.346)


def test_stored_history_continues_with_new_metrics_and_the_newest_events() -> None:
    first = History()
    first.add(t_s=1.0, progress_pct=0.5)
    first.add_event(RunEvent(t_s=1.0, kind="restarted", why='"quoted" \u2026'))
    again = History(first.to_json())
    again.add({"auc": float("nan")}, t_s=2.0, loss=1e-7)
    stored = again.to_json()
    assert StoredHistory.read(stored) is not None
    assert stored["columns"][-1] == "metric.auc"
    assert [row[0] for row in stored["samples"]] == [1.0, 2.0]
    assert [row[-2:] for row in stored["samples"]] == [[None, None], [1e-7, None]]
    assert stored["events"] == first.to_json()["events"]
    for second in range(200):
        again.add_event(RunEvent(t_s=second, kind="ceiling"))
    assert [event["t_s"] for event in again.to_json()["events"]] == [*range(100, 200)]
