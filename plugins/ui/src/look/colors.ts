// Airflow's theme colours for canvas drawings, to which style sheets do not apply.
import { useEffect, useState } from "react";

const TOKENS = {
  text: "fg",
  muted: "fg-muted",
  grid: "border",
} as const;

const PALETTES = {
  progress: "blue",
  devices: "green",
  loss: "purple",
  metric: "orange",
  deadline: "red",
  cyan: "cyan",
  pink: "pink",
  teal: "teal",
  yellow: "yellow",
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

export type Colors = Record<keyof typeof TOKENS | keyof typeof PALETTES, string>;

/** Mix the colour of areas, which is dark on dark pages, with that of texts, which is pale there. */
const mix = (solid: string, text: string) => `color-mix(in srgb, ${solid} 60%, ${text})`;

/** Return a colour of the theme that can be seen on light and on dark pages, for style sheets. */
export const visible = (palette: string) =>
  mix(`var(--chakra-colors-${palette}-solid)`, `var(--chakra-colors-${palette}-fg)`);

function readColors(): Colors {
  const style = getComputedStyle(document.documentElement);
  const read = (token: string) => style.getPropertyValue(`--chakra-colors-${token}`).trim();
  const plain = Object.entries(TOKENS).map(([name, token]) => [name, read(token)]);
  const mixed = Object.entries(PALETTES).map(([name, palette]) => {
    const [solid, text] = [read(`${palette}-solid`), read(`${palette}-fg`)];
    return [name, solid && text ? mix(solid, text) : ""];
  });
  const known = [...plain, ...mixed].filter(([, color]) => color);
  return { ...DEFAULTS, ...Object.fromEntries(known) } as Colors;
}

/** Return the colours of the lines or areas of several jobs or runs. */
export const palette = (colors: Colors) => [
  colors.progress,
  colors.devices,
  colors.metric,
  colors.loss,
  colors.pink,
  colors.cyan,
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
