import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import { expect, test, vi } from "vitest";

import { StatusBadge } from "./StatusBadge";

vi.mock("@chakra-ui/react", () => ({ Badge: "p" }));

test.each([
  ["no sample for 8 min 46 s", "no sample for 8\u00a0min\u00a046\u00a0s"],
  ["on time, 1 h 40 min slack", "on time, 1\u00a0h\u00a040\u00a0min slack"],
  ["done 3 s early (−0.09 %)", "done 3\u00a0s early (−0.09 %)"],
])("the duration of %o does not break", (text, shown) => {
  vi.spyOn(console, "error").mockImplementation(() => {}); // properties of Chakra's components
  const status = { level: "good" as const, text, slackS: 0 };
  expect(renderToStaticMarkup(createElement(StatusBadge, { status }))).toContain(` ${shown}</p>`);
});
