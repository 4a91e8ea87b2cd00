from paceline.run import History


def test_small_loss_and_metrics_keep_their_digits() -> None:
    history = History()
    history.add({"mse": 0.00042}, t_s=12.3456, loss=0.000312345678, devices=1.0)
    stored = history.to_json()
    row = dict(zip(stored["columns"], stored["samples"][0], strict=True))
    assert (row["loss"], row["metric.mse"], row["t_s"]) == (0.000312346, 0.00042, 12.346)
