import { Button, HStack, NativeSelect } from "@chakra-ui/react";

import { type Smoothing, SMOOTHINGS } from "./smooth";
import type { Span } from "./zoom";

/** Buttons and a choice for all charts of a group. A selection in a chart zooms, too. */
export function ChartTools(props: {
  name: string;
  zoom: Span | null;
  /** Change the width of the shown part; by `Infinity`, show all. */
  zoomBy: (factor: number) => void;
  /** `null` if no chart can be smoothed. */
  smoothing: Smoothing | null;
  setSmoothing: (smoothing: Smoothing) => void;
  /** Save the samples as a file; by default, there is no button for it. */
  save?: () => void;
}) {
  const { name, zoom, smoothing } = props;
  const button = { size: "xs", variant: "outline" } as const;
  return (
    <HStack gap={2} wrap="wrap" role="group" aria-label={`Charts of ${name}`}>
      <Button {...button} onClick={() => props.zoomBy(0.5)}>
        Zoom in
      </Button>
      <Button {...button} disabled={!zoom} onClick={() => props.zoomBy(2)}>
        Zoom out
      </Button>
      <Button {...button} disabled={!zoom} onClick={() => props.zoomBy(Infinity)}>
        Whole run
      </Button>
      {smoothing ? (
        <NativeSelect.Root size="xs" w="10rem">
          <NativeSelect.Field
            aria-label="Smoothing"
            value={smoothing}
            onChange={(event) => props.setSmoothing(event.target.value as Smoothing)}
          >
            {Object.keys(SMOOTHINGS).map((one) => (
              <option key={one} value={one}>
                {one === "none" ? "no" : one} smoothing
              </option>
            ))}
          </NativeSelect.Field>
          <NativeSelect.Indicator />
        </NativeSelect.Root>
      ) : null}
      {props.save ? (
        <Button {...button} onClick={props.save}>
          Download CSV
        </Button>
      ) : null}
    </HStack>
  );
}
