import { Box, Button, Field, HStack, Input, Stack, Text } from "@chakra-ui/react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useId, useRef, useState } from "react";

import { checkDeadline, jobKey, putDeadline, type Pace, type SeenDeadlines } from "../api";
import type { TrainingJob } from "../contract";
import { Notice } from "../look/Notice";
import { timeZone } from "../look/zone";
import { formatClock, formatDevicesOf, formatDuration, formatTime } from "../format";
import { previewAll } from "./preview";
import { originOf } from "./series";
import { resolveTimeOfDay } from "./timeOfDay";

const STEPS_S = [10, 60, 300, 1800, 7200];

interface Props {
  /** The jobs whose deadline the form changes. */
  jobs: TrainingJob[];
  /** The samples of the workers. */
  paces: Pace[];
  /** The sample of all workers combined. */
  pace: Pace;
  mayChange: boolean;
}

/** A form that changes the deadline of one or several jobs, with a preview of the effect. */
export function DeadlineForm({ jobs, paces, pace, mayChange }: Props) {
  const [text, setText] = useState("");
  // The deadlines at the time when the user began to type. Airflow rejects the new deadline if they have changed since.
  const seen = useRef<SeenDeadlines>(new Map());
  const queries = useQueryClient();
  const hintId = useId();
  const deadline = resolveTimeOfDay(text);
  const { data, error: rejected } = useQuery({
    queryKey: ["deadline", ...jobs.map((job) => [job.dag_id, job.run_id, jobKey(job)]), deadline],
    queryFn: () => checkDeadline(jobs, deadline, seen.current),
    enabled: mayChange && deadline !== "",
  });
  const acceptedS = rejected ? undefined : data; // null for no deadline
  const change = useMutation({
    mutationFn: () => putDeadline(jobs, deadline, seen.current),
    onSuccess: () => {
      setText("");
      return queries.invalidateQueries({ queryKey: ["run"] }); // until then, the steps would count from the old deadline
    },
    onError: () => void queries.invalidateQueries({ queryKey: ["run"] }),
    onSettled: () => {
      seen.current = new Map(); // after a rejection, the user has seen the newest deadline and may retry
    },
  });
  const updateText = (typed: string) => {
    change.reset();
    if (!typed.trim()) seen.current = new Map();
    else if (!seen.current.size)
      seen.current = new Map(jobs.map((job) => [jobKey(job), job.deadline?.updated_at ?? ""]));
    setText(typed);
  };
  if (!mayChange) {
    return (
      <Notice>
        Your role in Airflow lets you view this job. To change its deadline, you need permission to edit the DAG's task
        instances.
      </Notice>
    );
  }
  const origin = Math.min(...jobs.map((job) => originOf(job.pace).getTime())); // of the seconds of a check
  const from = pace.deadline_s ?? pace.forecast_s ?? pace.t_s;
  const fromS = (originOf(pace).getTime() - origin) / 1000 + from;
  const [small = 5, large] = STEPS_S.filter((step) => step <= from / 2).slice(-2);
  const steps = large ? [-large, -small, small, large] : [-small, small];
  // The steps count from the deadline of the newest sample, which is then not the one that the user would replace.
  const isPending = change.isPending || (acceptedS == null && jobs.some((job) => job.deadline?.pending));
  // Each job counts a duration from its own start, so several jobs get a time.
  const textOf = (seconds: number) =>
    jobs.length > 1
      ? new Date(1000 * Math.round(origin / 1000 + seconds)).toISOString().replace(".000Z", "Z")
      : `${Math.round(seconds)}s`;
  const [, movedBy] = /^(\d+)s$/.exec(text) ?? [];
  // Of a step that the server has not checked yet.
  const movedToS = movedBy ? Number(movedBy) : text.endsWith("Z") ? (Date.parse(text) - origin) / 1000 : fromS;
  const submit = (event: React.FormEvent) => {
    event.preventDefault();
    if (acceptedS !== undefined) change.mutate();
  };
  return (
    <form onSubmit={submit}>
      <Stack gap={2}>
        <Field.Root invalid={rejected !== null}>
          <Field.Label>New deadline</Field.Label>
          <HStack gap={2} w="100%" wrap="wrap">
            <Input
              value={text}
              onChange={(event) => updateText(event.target.value)}
              readOnly={change.isPending}
              placeholder="20m, 1h30m, 18:30"
              aria-describedby={hintId}
              maxW="14rem"
              autoComplete="off"
            />
            <Button type="submit" disabled={acceptedS === undefined} loading={change.isPending} loadingText="Setting">
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
                disabled={isPending}
                onClick={() => updateText(textOf(Math.max((acceptedS ?? movedToS) + step, 1)))}
              >
                {step > 0 ? "+" : "−"}
                {formatDuration(step)}
              </Button>
            ))}
          </HStack>
        </Field.Root>
        <Box id={hintId} minH="1.5em">
          {acceptedS != null ? (
            <Text fontSize="sm">
              {formatClock(acceptedS)} after the start, {formatTime(new Date(origin + acceptedS * 1000))} {timeZone()}:{" "}
              <b data-testid="preview">{previewText(paces, pace, origin + acceptedS * 1000)}</b>
            </Text>
          ) : (
            <Text fontSize="sm" color={rejected ? "red.fg" : "fg.muted"}>
              {rejected?.message ?? `A duration from the start, or a time of day (${timeZone()}).`}
            </Text>
          )}
        </Box>
        {change.isError ? <Notice kind="error">{change.error.message}</Notice> : null}
        {change.isSuccess ? <Notice kind="success">The job applies the new deadline within two seconds.</Notice> : null}
      </Stack>
    </form>
  );
}

function previewText(paces: Pace[], pace: Pace, deadlineMs: number): string {
  const preview = previewAll(paces, deadlineMs);
  switch (preview.kind) {
    case "unknown":
      return "no forecast yet";
    case "met":
      return `can be met on about ${formatDevicesOf(pace, preview.devices)} (now ${formatDevicesOf(pace, pace.devices)})`;
    case "early":
      return `ends ${formatDuration(preview.earlyS)} before the deadline on the smallest allocation`;
    case "missed": {
      const most = formatDevicesOf(pace, preview.maxDevices);
      return `cannot be met: ${formatDuration(preview.lateS)} late on ${most.startsWith("1 ") ? most : `all ${most}`}`;
    }
  }
}
