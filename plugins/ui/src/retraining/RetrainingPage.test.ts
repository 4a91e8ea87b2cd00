import { createElement, type ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";

import { RetrainingPage } from "./RetrainingPage";

const query = vi.hoisted(() => ({ current: {}, others: {} as Record<string, object>, tab: "recent", asked: [""] }));

vi.mock("@tanstack/react-query", () => ({
  useQuery: ({ queryKey, enabled = true }: { queryKey: [string]; enabled?: boolean }) => {
    if (enabled) query.asked.push(queryKey[0]);
    return query.others[queryKey[0]] ?? query.current;
  },
}));
vi.mock("react-router-dom", () => ({ useNavigate: () => null, useParams: () => ({ tab: query.tab }) }));
vi.mock("../history/HistoryPage", () => ({ HistoryPage: () => "history" }));
vi.mock("../look/Notice", () => ({ Notice: ({ children }: { children: ReactNode }) => children }));
vi.mock("../pools/Pools", () => ({ Pools: () => "pools" }));
vi.mock("./Fleet", () => ({ Fleet: () => "fleet" }));
vi.mock("./Models", () => ({ Models: () => "models" }));
vi.mock("./Recent", () => ({ Recent: ({ jobs }: { jobs: unknown[] }) => `${jobs.length} ended` }));
vi.mock("./Running", () => ({ Running: ({ jobs }: { jobs: unknown[] }) => `${jobs.length} running` }));
vi.mock("@chakra-ui/react", () => {
  const part = ({ children }: { children?: ReactNode }) => children ?? null;
  const Tabs = { Root: part, List: part, Trigger: part, Content: part };
  return { Heading: part, Skeleton: part, Stack: part, Tabs };
});

test("without an answer, the page does not say that no job is running or has ended", () => {
  query.current = { data: undefined, error: new Error("Airflow does not respond."), isPending: false };
  const failed = renderToStaticMarkup(createElement(RetrainingPage));
  expect(failed).toContain("Airflow does not respond.");
  expect(failed).not.toMatch(/0 (running|ended)/);

  query.current = { data: { running: [], recent: [], unstarted: [] }, error: null, isPending: false };
  const answered = renderToStaticMarkup(createElement(RetrainingPage));
  expect(answered).toMatch(/0 running.*0 ended/);
});

test("a tab has the errors of its own queries only, and asks for ended jobs only if it shows them", () => {
  query.current = { data: { running: [], recent: [], unstarted: [] }, error: null, isPending: false };
  query.others = { overview: { data: undefined, error: new Error("Airflow does not respond."), isPending: false } };
  const render = (tab: string) => {
    Object.assign(query, { tab, asked: [] });
    return renderToStaticMarkup(createElement(RetrainingPage));
  };
  expect(render("models")).toContain("Airflow does not respond.");
  expect(query.asked).toEqual(["running", "overview", "champions"]);
  expect(render("recent")).not.toContain("Airflow does not respond.");
  expect(query.asked).toEqual(["running", "ended"]);
});
