import { HStack, Text } from "@chakra-ui/react";

/** Return the index of the last time up to `cursorT`; without a selected time, that of the last. */
export function indexAt(t: number[], cursorT: number | null): number {
  if (cursorT === null) return t.length - 1;
  return Math.max(
    t.findLastIndex((one) => one <= cursorT),
    0,
  );
}

/** A slider that selects one of the times of a chart; `text` has the values at that time. */
export function TimeSlider(props: {
  t: number[];
  index: number;
  label: string;
  text: string;
  onCursor: (t: number | null) => void;
}) {
  const { t, index, label, text, onCursor } = props;
  const last = t.length - 1;
  if (last < 1) return null;
  return (
    <HStack gap={3} wrap="wrap">
      <input
        type="range"
        min={0}
        max={last}
        value={index}
        aria-label={label}
        aria-valuetext={text}
        style={{ flex: "1 1 12rem", minWidth: 0, accentColor: "currentColor" }}
        onChange={(event) => {
          const selected = Number(event.target.value);
          onCursor(selected >= last ? null : (t[selected] ?? null));
        }}
      />
      <Text fontSize="sm" color="fg.muted" fontVariantNumeric="tabular-nums" aria-hidden>
        {text}
      </Text>
    </HStack>
  );
}
