// Airflow's own colours for what is drawn on a canvas, which no style sheet reaches; they change with light and dark.
import { useEffect, useState } from "react";

const TOKENS = {
  ink: "--chakra-colors-fg",
  soft: "--chakra-colors-fg-muted",
  rule: "--chakra-colors-border",
  progress: "--chakra-colors-blue-solid",
  devices: "--chakra-colors-green-solid",
  loss: "--chakra-colors-purple-solid",
  metric: "--chakra-colors-orange-solid",
  deadline: "--chakra-colors-red-solid",
} as const;

const PLAIN: Colors = {
  ink: "#24292f",
  soft: "#57606a",
  rule: "#d0d7de",
  progress: "#0969da",
  devices: "#1a7f37",
  loss: "#8250df",
  metric: "#bc4c00",
  deadline: "#cf222e",
};

export type Colors = Record<keyof typeof TOKENS, string>;

function read(): Colors {
  const style = getComputedStyle(document.documentElement);
  const found = Object.entries(TOKENS).map(([name, token]) => [
    name,
    style.getPropertyValue(token).trim() || PLAIN[name as keyof Colors],
  ]);
  return Object.fromEntries(found) as Colors;
}

/** The colours as they are now; drawn anew when whoever looks switches between light and dark. */
export function useColors(): Colors {
  const [colors, setColors] = useState(read);
  useEffect(() => {
    const watch = new MutationObserver(() => setColors(read()));
    watch.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "data-theme", "style"] });
    return () => watch.disconnect();
  }, []);
  return colors;
}
