import { expect, test } from "vitest";

import { GUIDES } from "./GuideLink";

const files = Object.keys(import.meta.glob("../../../../docs/*.md"));

test.each(Object.keys(GUIDES))("the guide %s exists", (name) => {
  expect(files).toContain(`../../../../docs/${name}.md`);
});
