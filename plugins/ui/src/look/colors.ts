// Airflow's theme colours for canvas drawings, to which style sheets do not apply.
import { useEffect, useState } from "react";

const TOKENS = {
  text: "--chakra-colors-fg",
  muted: "--chakra-colors-fg-muted",
  grid: "--chakra-colors-border",
  progress: "--chakra-colors-blue-solid",
  devices: "--chakra-colors-green-solid",
  loss: "--chakra-colors-purple-solid",
  metric: "--chakra-colors-orange-solid",
  deadline: "--chakra-colors-red-solid",
  cyan: "--chakra-colors-cyan-solid",
  pink: "--chakra-colors-pink-solid",
  teal: "--chakra-colors-teal-solid",
  yellow: "--chakra-colors-yellow-solid",
} as const;

const DEFAULTS: Colors = {
  text: "#24292f",
  muted: "#57606a",
  grid: "#d0d7de",
  progress: "#0969da",
  devices: "#1a7f37",
  loss: "#8250df",
  metric: "#bc4c00",
  deadline: "#cf222e",
  cyan: "#0891b2",
  pink: "#db2777",
  teal: "#0d9488",
  yellow: "#ca8a04",
};

export type Colors = Record<keyof typeof TOKENS, string>;

function readColors(): Colors {
  const style = getComputedStyle(document.documentElement);
  const values = Object.entries(TOKENS).map(([name, token]) => [
    name,
    style.getPropertyValue(token).trim() || DEFAULTS[name as keyof Colors],
  ]);
  return Object.fromEntries(values) as Colors;
}

/** Return the colours of the lines or areas of several jobs or runs. */
export const palette = (colors: Colors) => [
  colors.progress,
  colors.devices,
  colors.metric,
  colors.loss,
  colors.cyan,
  colors.pink,
  colors.teal,
  colors.yellow,
];

/** Return the current colours; they change when the user switches between light and dark. */
export function useColors(): Colors {
  const [colors, setColors] = useState(readColors);
  useEffect(() => {
    const observer = new MutationObserver(() => setColors(readColors()));
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "data-theme", "style"] });
    return () => observer.disconnect();
  }, []);
  return colors;
}
