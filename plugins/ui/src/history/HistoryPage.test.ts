import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";

import { HistoryPage } from "./HistoryPage";

const page = vi.hoisted(() => ({ watched: [] as object[], ref: {}, asked: [] as unknown[] }));

vi.mock("react", async (load) => ({ ...(await load<typeof import("react")>()), useRef: () => page.ref }));
vi.mock("@tanstack/react-query", () => ({
  useQuery: ({ queryKey }: { queryKey: unknown[] }) => {
    if (queryKey[0] === "subjects") return { data: page.watched };
    page.asked.push(queryKey[1]);
    return {};
  },
}));
vi.mock("react-router-dom", () => ({ useNavigate: () => null, useSearchParams: () => [new URLSearchParams()] }));
vi.mock("../look/GuideLink", () => ({ GuideLink: () => null }));
vi.mock("../look/Loading", () => ({ Loading: () => null, Problem: () => null }));
vi.mock("../look/Notice", () => ({ Notice: () => null }));
vi.mock("./HistoryPicture", () => ({ HistoryPicture: () => null }));
vi.mock("./HistoryTable", () => ({ HistoryTable: () => null }));
vi.mock("./LastReport", () => ({ LastReport: () => null }));
vi.mock("./TrendChart", () => ({ TrendChart: () => null }));
vi.mock("@chakra-ui/react", () => {
  const NativeSelect = { Root: "div", Field: "select", Indicator: () => null };
  return { Button: "button", HStack: "div", NativeSelect, Stack: "div", Text: "p" };
});

test("the page keeps its model when another is checked", () => {
  const subject = (model: string) => ({ subject: { model, registry: null, dag_id: null, task_id: null, asset: null } });
  page.watched = [subject("churn"), subject("fraud")];
  renderToStaticMarkup(createElement(HistoryPage));
  page.watched.reverse();
  renderToStaticMarkup(createElement(HistoryPage));
  expect(page.asked).toEqual(["model=churn", "model=churn"]);
});
