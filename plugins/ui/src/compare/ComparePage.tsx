import { Checkbox, Heading, HStack, Stack, Table, Text } from "@chakra-ui/react";
import { useQueries, useQuery } from "@tanstack/react-query";
import { Link, useSearchParams } from "react-router-dom";

import { getHistory, getModel, getRunJobs, jobKey } from "../api";
import { formatTime, isEnded } from "../format";
import { GuideLink } from "../look/GuideLink";
import { Loading, Problem } from "../look/Loading";
import { Notice } from "../look/Notice";
import { modelPath, MOST_COMPARED, type VersionRow, versionsOf } from "../model/versionsOf";
import { runPath } from "../retraining/RunLink";
import { Curves } from "./Curves";
import { entriesOf, type Entry, figuresOf, type StoredRun } from "./entriesOf";

const REFRESH_MS = 10_000;

/** The runs of some versions of a model side by side. The URL names the model, the registry and the versions. */
export function ComparePage() {
  const [parameters, setParameters] = useSearchParams();
  const [model, registry] = [parameters.get("model") ?? "", parameters.get("registry") ?? ""];
  const chosen = [...new Set(parameters.getAll("version").map(Number))];
  const query = useQuery({ queryKey: ["model", registry, model], queryFn: () => getModel(registry, model) });
  const rows = query.data ? versionsOf(query.data).rows.filter(({ run }) => run) : [];
  const found = rows.filter(({ version }) => chosen.includes(version));
  const shown = found.slice(0, MOST_COMPARED);
  const choose = (version: number, isChosen: boolean) =>
    setParameters(
      (before) => {
        const after = new URLSearchParams(before);
        after.delete("version");
        for (const one of [...chosen.filter((other) => other !== version), ...(isChosen ? [version] : [])])
          after.append("version", String(one));
        return after;
      },
      { replace: true },
    );
  return (
    <Stack gap={5}>
      <Link to={modelPath({ model, registry })} style={{ textDecoration: "underline", alignSelf: "start" }}>
        All versions of {model}
      </Link>
      <Heading as="h1" size="xl" overflowWrap="anywhere">
        Runs of {model}
      </Heading>
      <Problem query={query} />
      {query.isPending ? <Loading query={query} height="20rem" /> : null}
      {query.data && !rows.length ? (
        <Notice>
          No version of {model} is from a run that you may read. <GuideLink to="registry" />
        </Notice>
      ) : null}
      <HStack gap={4} wrap="wrap" role="group" aria-label="Versions to compare">
        {rows.map(({ version }) => (
          <Checkbox.Root
            key={version}
            size="sm"
            minW="6.5rem"
            checked={chosen.includes(version)}
            disabled={!chosen.includes(version) && shown.length >= MOST_COMPARED}
            onCheckedChange={({ checked }) => choose(version, checked === true)}
          >
            <Checkbox.HiddenInput />
            <Checkbox.Control />
            <Checkbox.Label>version {version}</Checkbox.Label>
          </Checkbox.Root>
        ))}
      </HStack>
      {found.length > shown.length ? (
        <Notice kind="warning">
          The newest {shown.length} of {found.length} chosen versions are shown.
        </Notice>
      ) : null}
      <Comparison rows={shown} />
    </Stack>
  );
}

async function loadRun({ run }: VersionRow): Promise<StoredRun> {
  if (!run) return { jobs: [], histories: new Map() };
  const { jobs } = await getRunJobs(run.dag_id, run.run_id);
  const histories = await Promise.all(jobs.map(async (job) => [jobKey(job), await getHistory(job)] as const));
  return { jobs, histories: new Map(histories) };
}

function Comparison({ rows }: { rows: VersionRow[] }) {
  const runs = useQueries({
    queries: rows.map((row) => ({
      queryKey: ["stored run", row.run?.dag_id, row.run?.run_id],
      queryFn: () => loadRun(row),
      refetchInterval: ({ state: { data } }: { state: { data: StoredRun | undefined } }) =>
        data?.jobs.every(isEnded) ? (false as const) : REFRESH_MS,
    })),
  });
  const entries: Entry[] = [];
  const missing: string[] = [];
  rows.forEach((row, index) => {
    const run = runs[index];
    const found = run?.data ? entriesOf(row, run.data) : [];
    entries.push(...found);
    if (run?.isError) missing.push(`Version ${row.version}: ${run.error.message}`);
    else if (run?.data && !found.length)
      missing.push(`Version ${row.version}: Airflow has no training job of its run, or has removed its state.`);
  });
  if (!rows.length) return <Notice>Choose two or more versions.</Notice>;
  return (
    <>
      {missing.map((text) => (
        <Notice key={text} kind="warning">
          {text}
        </Notice>
      ))}
      {entries.length ? (
        <>
          <Figures entries={entries} />
          <Curves entries={entries} />
        </>
      ) : null}
    </>
  );
}

function Figures({ entries }: { entries: Entry[] }) {
  const columns = entries.map(figuresOf);
  const names = [...new Set(columns.flatMap((one) => one.map(([name]) => name)))];
  return (
    <Stack gap={1}>
      <Table.ScrollArea whiteSpace="normal">
        <Table.Root size="sm" aria-label="Runs side by side">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader px={1}>Run</Table.ColumnHeader>
              {entries.map(({ name, row, startedAt }) => (
                <Table.ColumnHeader key={name} px={1} verticalAlign="top">
                  {row.run ? (
                    <Link to={runPath(row.run)} style={{ textDecoration: "underline" }}>
                      {name}
                    </Link>
                  ) : (
                    name
                  )}
                  <Text fontSize="xs" color="fg.muted" fontWeight="normal">
                    {startedAt ? formatTime(new Date(startedAt)) : "start not stored"}
                  </Text>
                </Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {names.map((name) => (
              <Table.Row key={name} verticalAlign="top">
                <Table.ColumnHeader px={1} scope="row">
                  {name}
                </Table.ColumnHeader>
                {columns.map((figures, index) => (
                  <Table.Cell key={entries[index]?.name} px={1} fontVariantNumeric="tabular-nums">
                    {figures.find(([one]) => one === name)?.[1] ?? ""}
                  </Table.Cell>
                ))}
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Table.ScrollArea>
      <Text fontSize="xs" color="fg.muted">
        Duration and deadline count from the start of the deadline. Core hours are the cost: the allocation over time.
        Scores before and after are from the same hold-out data; those of another run may be from other data. They are
        left empty if the run has several trainings, because the version may be from any of them.
      </Text>
    </Stack>
  );
}
