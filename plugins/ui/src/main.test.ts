import { onlineManager, type QueryClient } from "@tanstack/react-query";
import { Children, isValidElement, type ReactElement, type ReactNode } from "react";
import { expect, test, vi } from "vitest";

import PluginComponent from "./main";
import { RunPage } from "./pace/RunPage";

vi.mock("@chakra-ui/react", () => ({ Box: "div" })); // the test renders nothing

function findRunPage(node: ReactNode): ReactElement | undefined {
  return Children.toArray(node).flatMap((child) => {
    if (!isValidElement<{ children?: ReactNode }>(child)) return [];
    return child.type === RunPage ? [child] : (findRunPage(child.props.children) ?? []);
  })[0];
}

test("the page of another run keeps no state, such as a typed deadline", () => {
  const page = (runId: string) => findRunPage(PluginComponent({ dagId: "retrain", runId }));
  expect(page("monday")?.key).toBe(page("monday")?.key);
  expect(page("monday")?.key).not.toBe(page("tuesday")?.key);
});

test("without network, the page asks Airflow and sends changes at once", async () => {
  const { client } = (PluginComponent({}) as ReactElement<{ client: QueryClient }>).props;
  onlineManager.setOnline(false);
  try {
    expect(await client.fetchQuery({ queryKey: ["run"], queryFn: () => "answer" })).toBe("answer");
    const change = client.getMutationCache().build(client, { mutationFn: () => Promise.resolve("changed") });
    expect(await change.execute(undefined)).toBe("changed");
  } finally {
    onlineManager.setOnline(true);
  }
});
