// The part of a run that its charts show.

export type Span = [from: number, to: number];

const LEAST_S = 2;

/** Return the span for a new width, `factor` times that of now, around the selected time or the middle; `null` for all. */
export function zoomBy(factor: number, now: Span | null, all: Span, cursorT: number | null): Span | null {
  const [from, to] = now ?? all;
  const width = Math.max((to - from) * factor, LEAST_S);
  if (width >= all[1] - all[0]) return null;
  const middle = cursorT !== null && cursorT >= from && cursorT <= to ? cursorT : (from + to) / 2;
  const start = Math.min(Math.max(middle - width / 2, all[0]), all[1] - width);
  return [start, start + width];
}

/** Return the span of a selection, in either direction; `null` for one that is too short to be meant. */
export function spanOf(one: number, other: number): Span | null {
  const span: Span = [Math.min(one, other), Math.max(one, other)];
  return span[1] - span[0] < LEAST_S ? null : span;
}
