import { Badge, Box, Button, Checkbox, HStack, Stack, Table, Text, VisuallyHidden } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import { formatTime } from "../format";
import { Breakable } from "../look/Breakable";
import { DecisionText, Improvement } from "../retraining/Evaluations";
import { type Evaluation, scaleOf } from "../retraining/evaluationsOf";
import { LONG_LINK, runPath } from "../retraining/RunLink";
import type { VersionRow, VersionTable as Contents } from "./versionsOf";

const CHANGES = { promote: "Promote …", "roll back": "Roll back …", release: "Release …" };

interface Props {
  table: Contents;
  name: string;
  chosen: number[];
  choose: (version: number, isChosen: boolean) => void;
  change: (row: VersionRow) => void;
}

/** A row for each version: what it is from, how it was scored, what was decided, and a button that changes that. */
export function VersionTable({ table, name, chosen, choose, change }: Props) {
  const { rows, metric, held } = table;
  const evaluations = rows.flatMap(({ evaluation }) => evaluation ?? []);
  const position = scaleOf(evaluations, metric ?? "");
  return (
    <Table.ScrollArea whiteSpace="normal">
      <Table.Root size="sm" aria-label={`Versions of ${name}`}>
        <Table.Header>
          <Table.Row>
            {["Version", "Trained by", "Evaluation", "Improvement"].map((title) => (
              <Table.ColumnHeader key={title} px={1}>
                {title}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {rows.map((row) => (
            <Table.Row key={row.version} verticalAlign="top">
              <Table.Cell px={1}>
                <Stack gap={1} align="start">
                  <HStack gap={2} wrap="wrap">
                    <Text fontWeight="semibold">{row.version}</Text>
                    {row.isChampion ? <Badge colorPalette="green">champion{held ? ", held" : ""}</Badge> : null}
                    {row.stored && !row.stored.created_at ? <Badge colorPalette="red">damaged</Badge> : null}
                    {row.stored?.signed ? <Badge>signed</Badge> : null}
                  </HStack>
                  <Text fontSize="xs" color="fg.muted">
                    {row.at ? formatTime(new Date(row.at)) : "date unknown"}
                  </Text>
                  {row.stored?.url ? (
                    <a
                      href={row.stored.url}
                      target="_blank"
                      rel="noreferrer"
                      style={{ textDecoration: "underline", fontSize: "0.75rem" }}
                    >
                      In MLflow
                    </a>
                  ) : null}
                  {row.change ? (
                    <Button size="xs" variant="outline" onClick={() => change(row)}>
                      {CHANGES[row.change]}
                    </Button>
                  ) : null}
                </Stack>
              </Table.Cell>
              <Table.Cell px={1}>
                <Origin row={row} isChosen={chosen.includes(row.version)} choose={choose} />
              </Table.Cell>
              <Table.Cell px={1}>
                <Scores row={row} />
              </Table.Cell>
              <Table.Cell px={1}>
                {row.evaluation ? (
                  <Improvement row={row.evaluation} position={row.evaluation.metric === metric ? position : null} />
                ) : null}
              </Table.Cell>
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Table.ScrollArea>
  );
}

/** The run that has trained a version, with its data. */
function Origin({ row, isChosen, choose }: { row: VersionRow; isChosen: boolean; choose: Props["choose"] }) {
  const { run, stored, version } = row;
  if (!run) return <Muted>unknown, or a DAG that you may not read</Muted>;
  return (
    <Stack gap={1} align="start">
      <Link to={runPath(run)} style={LONG_LINK}>
        <Breakable name={run.dag_id} />
      </Link>
      <Muted>
        <Breakable name={run.run_id} />
      </Muted>
      {stored?.data_until ? <Muted>data until {formatTime(new Date(stored.data_until))}</Muted> : null}
      <Stored title="Training data" text={stored?.window} />
      <Stored title="Lineage" text={stored?.lineage} />
      <Checkbox.Root size="sm" checked={isChosen} onCheckedChange={({ checked }) => choose(version, checked === true)}>
        <Checkbox.HiddenInput />
        <Checkbox.Control />
        <Checkbox.Label fontSize="xs">
          compare<VisuallyHidden> version {version}</VisuallyHidden>
        </Checkbox.Label>
      </Checkbox.Root>
    </Stack>
  );
}

function Stored({ title, text }: { title: string; text: string | null | undefined }) {
  return text ? (
    <Box asChild fontSize="xs" maxW="100%">
      <details>
        <summary>{title}</summary>
        <Box as="pre" whiteSpace="pre-wrap" overflowWrap="anywhere">
          {text}
        </Box>
      </details>
    </Box>
  ) : null;
}

/** The scores of the gate: of the version and of the champion of then on the same data; else those at registration. */
function Scores({ row: { evaluation, stored } }: { row: VersionRow }) {
  const others = Object.entries(stored?.metrics ?? {}).filter(([metric]) => metric !== evaluation?.metric);
  return (
    <Stack gap={1} align="start" fontVariantNumeric="tabular-nums">
      {evaluation ? <Gate evaluation={evaluation} /> : <Muted>no evaluation stored</Muted>}
      {others.map(([metric, value]) => (
        <Muted key={metric}>
          <Breakable name={metric} /> {value.toPrecision(4)}
        </Muted>
      ))}
    </Stack>
  );
}

function Gate({ evaluation }: { evaluation: Evaluation }) {
  const { metric, score, championVersion, championScore } = evaluation;
  return (
    <>
      {score === null ? null : (
        <Text>
          {metric} {score.toPrecision(4)}
        </Text>
      )}
      {championVersion === null || championScore === null ? null : (
        <Muted>
          {championScore.toPrecision(4)} version {championVersion}, the champion then
        </Muted>
      )}
      <DecisionText decision={evaluation.decision} />
    </>
  );
}

function Muted({ children }: { children: React.ReactNode }) {
  return (
    <Text fontSize="xs" color="fg.muted" overflowWrap="anywhere">
      {children}
    </Text>
  );
}
