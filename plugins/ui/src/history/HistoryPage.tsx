import { Button, HStack, NativeSelect, Stack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { useNavigate, useSearchParams } from "react-router-dom";

import { getDriftHistory, getSubjects, subjectQuery } from "../api";
import type { HistoryCheck, Subject } from "../contract";
import { GuideLink } from "../look/GuideLink";
import { Loading, Problem } from "../look/Loading";
import { Notice } from "../look/Notice";
import { HistoryPicture } from "./HistoryPicture";
import { HistoryTable } from "./HistoryTable";
import { LastReport } from "./LastReport";
import { summaryOf } from "./layout";
import { TrendChart } from "./TrendChart";
import { historyPath, nameOf, readSubject } from "./subjects";

const REFRESH_MS = 30_000;
const CHECKS = 60;
const MAX_OFFSET = 2000; // of the server

/** The history of one model's drift; the URL names the model, by default the one checked last. */
export function HistoryPage() {
  const [parameters] = useSearchParams();
  const navigate = useNavigate();
  const watched = useQuery({ queryKey: ["subjects"], queryFn: getSubjects, refetchInterval: REFRESH_MS });
  const known = watched.data?.map(({ subject }) => subject) ?? [];
  const first = useRef<Subject>(undefined); // stays: the model checked last may be another after each request
  first.current ??= known[0];
  const shown = readSubject(parameters) ?? first.current;
  const isKnown = shown && known.some((subject) => subjectQuery(subject) === subjectQuery(shown));
  const choices = shown && !isKnown ? [shown, ...known] : known;
  return (
    <Stack gap={4}>
      <Problem query={watched} of="List of models" />
      {watched.isPending ? <Loading query={watched} height="2rem" /> : null}
      {watched.data && !shown ? (
        <Notice>
          No drift sensor or trigger has stored a check in the last 90 days. <GuideLink to="drift" />
        </Notice>
      ) : null}
      {shown ? (
        <>
          <NativeSelect.Root size="sm" maxW="48rem">
            <NativeSelect.Field
              aria-label="Model"
              value={subjectQuery(shown)}
              onChange={(event) => {
                const chosen = choices.find((subject) => subjectQuery(subject) === event.target.value);
                if (chosen) void navigate(historyPath(chosen));
              }}
            >
              {choices.map((subject) => (
                <option key={subjectQuery(subject)} value={subjectQuery(subject)}>
                  {nameOf(subject)}
                </option>
              ))}
            </NativeSelect.Field>
            <NativeSelect.Indicator />
          </NativeSelect.Root>
          <History key={subjectQuery(shown)} subject={shown} />
        </>
      ) : null}
    </Stack>
  );
}

function History({ subject }: { subject: Subject }) {
  const [offset, setOffset] = useState(0);
  const query = useQuery({
    queryKey: ["drift history", subjectQuery(subject), offset],
    queryFn: () => getDriftHistory(subject, offset, CHECKS),
    refetchInterval: REFRESH_MS,
  });
  const history = query.data;
  const hasOlder = !!history?.older && offset + CHECKS <= MAX_OFFSET;
  return (
    <Stack gap={3} as="section" aria-label={`Drift history of ${nameOf(subject)}`}>
      <Problem query={query} />
      {query.isPending ? <Loading query={query} height="20rem" /> : null}
      {history && !history.checks.length ? (
        <Notice>
          No check of {nameOf(subject)} is stored. <GuideLink to="drift" />
        </Notice>
      ) : null}
      {history?.checks.length ? (
        <>
          <Text fontSize="sm">{summaryOf(history)}</Text>
          <HistoryPicture history={history} name={nameOf(subject)} />
          <HStack gap={2} wrap="wrap" fontSize="sm" color="fg.muted">
            {offset ? (
              <Button size="xs" variant="outline" onClick={() => setOffset(Math.max(offset - CHECKS, 0))}>
                Newer checks
              </Button>
            ) : null}
            {hasOlder ? (
              <Button size="xs" variant="outline" onClick={() => setOffset(offset + CHECKS)}>
                Older checks
              </Button>
            ) : null}
            <Text>{leftOut(history.features_left_out)}</Text>
          </HStack>
          <HistoryTable history={history} />
          <TrendChart history={history} />
          {history.checks.at(-1) ? <LastReport check={history.checks.at(-1) as HistoryCheck} /> : null}
        </>
      ) : null}
    </Stack>
  );
}

function leftOut(features: number): string {
  if (!features) return "";
  return `${features} further feature${features === 1 ? "" : "s"} with smaller effects ${features === 1 ? "is" : "are"} not shown.`;
}
