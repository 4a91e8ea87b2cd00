import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";

import type { DriftHistory } from "../contract";
import { HistoryPicture } from "./HistoryPicture";

vi.mock("react-router-dom", () => ({ Link: "a" }));
vi.mock("@chakra-ui/react", () => ({ Box: "div", HStack: "div", Text: "p" }));

const hour = (number: number) => new Date(Date.UTC(2030, 0, 1, number)).toISOString();
const check = (at: string) => ({
  ...{ at, stored_at: at, dag_id: "retrain", run_id: at, task_id: "drift", map_index: -1 },
  ...{ verdict: "no drift", reason: "", retrain: false },
});
const version = (number: number, at: string) => ({
  ...{ at, dag_id: "retrain", run_id: "other", model: "churn", version: number, reason: "" },
  outcome: number === 4 ? ("rejected" as const) : ("promoted" as const),
});

test("each version has its number, however close the versions are", () => {
  const history: DriftHistory = {
    checks: [hour(0), hour(24), hour(240)].map(check),
    rows: [],
    features_left_out: 0,
    older: false,
    trainings: [],
    versions: [version(3, hour(25)), version(4, hour(26)), version(5, hour(26))],
  };
  vi.spyOn(console, "error").mockImplementation(() => {}); // properties of Chakra's components
  const svg = renderToStaticMarkup(createElement(HistoryPicture, { history, name: "churn" }));
  for (const label of ["★3", "✕4", "★5"]) expect(svg).toContain(`${label}</text>`);
});
