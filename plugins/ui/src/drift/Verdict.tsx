import { Badge } from "@chakra-ui/react";

const STYLES: Record<string, { palette: string; sign: string }> = {
  drift: { palette: "red", sign: "▲" },
  "no drift": { palette: "green", sign: "✓" },
  skipped: { palette: "gray", sign: "·" },
  withheld: { palette: "orange", sign: "?" },
  "not enough data": { palette: "orange", sign: "…" },
  "no champion": { palette: "blue", sign: "+" },
  "bad data": { palette: "red", sign: "!" },
  "nothing compared": { palette: "red", sign: "?" },
};

/** Return the colour and the sign of a verdict; a later version of Paceline may have stored another one. */
export const styleOf = (verdict: string) => STYLES[verdict] ?? { palette: "gray", sign: "·" };

/** A verdict as colour, sign and text. */
export function Verdict({ verdict }: { verdict: string }) {
  const { palette, sign } = styleOf(verdict);
  return (
    <Badge colorPalette={palette} size="md">
      <span aria-hidden>{sign}</span> {verdict}
    </Badge>
  );
}
