import { Box, Button, Field, HStack, Input, Stack, Text } from "@chakra-ui/react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useId, useRef, useState } from "react";

import { keyOf, putDeadline, type Pace, type Seen, type Training } from "../api";
import { Notice } from "../look/Notice";
import { timeZone } from "../look/zone";
import { clock, devices, duration, moment } from "../words";
import { foreseeTogether } from "./foresee";
import { originOf, readDeadline } from "./wish";

const STEPS_S = [10, 60, 300, 1800, 7200];

interface Props {
  /** Those that get the new deadline. */
  trainings: Training[];
  /** How those stand who train on it, and how they stand together. */
  paces: Pace[];
  pace: Pace;
  mayChange: boolean;
}

/** Changes the deadline of a training, or of all its workers; says first what that would mean. */
export function DeadlineForm({ trainings, paces, pace, mayChange }: Props) {
  const [text, setText] = useState("");
  // The deadlines that were in force when the new one was begun: what comes between is not to be overwritten.
  const seen = useRef<Seen>(new Map());
  const queries = useQueryClient();
  const hintId = useId();
  const change = useMutation({
    mutationFn: (deadline: string) => putDeadline(trainings, deadline, seen.current),
    onSuccess: () => setText(""),
    onSettled: () => {
      seen.current = new Map(); // whoever tries again has been told, and has seen the newest
      void queries.invalidateQueries();
    },
  });
  const write = (typed: string) => {
    change.reset();
    if (!typed.trim()) seen.current = new Map();
    else if (!seen.current.size)
      seen.current = new Map(trainings.map((one) => [keyOf(one), one.deadline?.updated_at ?? ""]));
    setText(typed);
  };
  if (!mayChange) {
    return (
      <Notice>
        Your role in Airflow lets you watch this training; changing its deadline takes the right to edit the DAG's task
        instances.
      </Notice>
    );
  }
  const origin = originOf(pace);
  const wish = text.trim() ? readDeadline(text, origin) : null;
  const from = pace.deadline_s ?? pace.forecast_s ?? pace.t_s;
  const [less = 5, more] = STEPS_S.filter((step) => step <= from / 2).slice(-2);
  const steps = more ? [-more, -less, less, more] : [-less, less];
  const submit = (event: React.FormEvent) => {
    event.preventDefault();
    if (wish) change.mutate(wish.value);
  };
  return (
    <form onSubmit={submit}>
      <Stack gap={2}>
        <Field.Root invalid={Boolean(text.trim()) && !wish}>
          <Field.Label>New deadline</Field.Label>
          <HStack gap={2} w="100%" wrap="wrap">
            <Input
              value={text}
              onChange={(event) => write(event.target.value)}
              placeholder="20m, 1h30m, 18:30"
              aria-describedby={hintId}
              maxW="14rem"
              autoComplete="off"
            />
            <Button type="submit" disabled={!wish} loading={change.isPending} loadingText="Setting">
              Set deadline
            </Button>
          </HStack>
          <HStack gap={1} wrap="wrap" role="group" aria-label="Move the deadline">
            {steps.map((step) => (
              <Button
                key={step}
                type="button"
                size="xs"
                variant="outline"
                onClick={() => write(`${Math.max(Math.round((wish?.seconds ?? from) + step), 1)}s`)}
              >
                {step > 0 ? "+" : "−"}
                {duration(step)}
              </Button>
            ))}
          </HStack>
        </Field.Root>
        <Box id={hintId} minH="1.5em">
          {wish ? (
            <Text fontSize="sm">
              {clock(wish.seconds)} after the start, {moment(new Date(origin.getTime() + wish.seconds * 1000))}{" "}
              {timeZone()}: <b data-testid="foreseen">{foreseen(paces, pace, wish.seconds)}</b>
            </Text>
          ) : (
            <Text fontSize="sm" color="fg.muted">
              {text.trim()
                ? "Write a time from the start (90s, 20m, 1h30m) or a time of day (18:30)."
                : `From the start of the run, or a time of day (${timeZone()}).`}
            </Text>
          )}
        </Box>
        {change.isError ? <Notice kind="error">{change.error.message}</Notice> : null}
        {change.isSuccess ? (
          <Notice kind="success">The training takes the new deadline within two seconds.</Notice>
        ) : null}
      </Stack>
    </form>
  );
}

function foreseen(paces: Pace[], pace: Pace, seconds: number): string {
  const found = foreseeTogether(paces, seconds);
  switch (found.kind) {
    case "passed":
      return "that has passed already";
    case "unknown":
      return "what it takes is not known yet";
    case "met":
      return `can be met, on about ${devices(found.devices, pace.quantum)} (now ${devices(pace.devices, pace.quantum)})`;
    case "early":
      return `will be done ${duration(found.earlyS)} before it, on the fewest devices allowed`;
    case "missed":
      return `cannot be met: ${duration(found.lateS)} late on all ${devices(found.most, pace.quantum)}`;
  }
}
