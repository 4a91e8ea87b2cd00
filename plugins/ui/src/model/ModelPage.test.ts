import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";

import type { ModelView } from "../contract";
import { ModelPage } from "./ModelPage";
import type { VersionRow } from "./versionsOf";

const page = vi.hoisted(() => ({
  cells: [] as unknown[],
  next: 0,
  view: {} as ModelView,
  change: (_: VersionRow) => {},
  dialog: {} as { reading?: { champion: number }; row?: VersionRow },
}));

vi.mock("react", async (load) => ({
  ...(await load<typeof import("react")>()),
  useState: (first: unknown) => {
    const cell = page.next++;
    page.cells[cell] ??= first;
    return [page.cells[cell], (value: unknown) => (page.cells[cell] = value)];
  },
}));
vi.mock("@tanstack/react-query", () => ({ useQuery: () => ({ data: page.view }) }));
vi.mock("react-router-dom", () => ({
  Link: "a",
  useNavigate: () => null,
  useSearchParams: () => [new URLSearchParams("model=churn&registry=/models")],
}));
vi.mock("../look/GuideLink", () => ({ GuideLink: () => null }));
vi.mock("../look/Notice", () => ({ Notice: () => null }));
vi.mock("./ChampionForm", () => ({
  ChampionForm: (dialog: typeof page.dialog) => {
    page.dialog = dialog;
    return null;
  },
}));
vi.mock("./VersionTable", () => ({
  VersionTable: ({ change }: { change: typeof page.change }) => {
    page.change = change;
    return null;
  },
}));
vi.mock("@chakra-ui/react", () => ({ Button: "button", Heading: "h1", HStack: "div", Stack: "div", Text: "p" }));

function render(champion: number): void {
  page.next = 0;
  const reading = { registry: "/models", model: "churn", champion, held: true } as ModelView["reading"];
  page.view = { reading, versions: [], promotions: [], evaluations: [], decisions: [], older: false, refusal: null };
  renderToStaticMarkup(createElement(ModelPage));
}

test("a dialog keeps the champion that the user saw when they opened it", () => {
  render(2);
  page.change({ version: 2, change: "release" } as VersionRow);
  render(5); // meanwhile another user has promoted version 5
  expect(page.dialog).toMatchObject({ reading: { champion: 2 }, row: { version: 2 } });
});
