import { Badge, Box, Stack, Table, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";

import { formatTime } from "../format";
import { visible } from "../look/colors";
import { scaleOf, type Decision, type Evaluation } from "./evaluationsOf";
import type { Model } from "./modelsOf";
import { runPath } from "./RunLink";

const MAX_ROWS = 8;

/** A row for each evaluation: the champion of then and the challenger on the same data, and the decision. */
export function Evaluations({ model }: { model: Model }) {
  const { evaluations, metric, greaterIsBetter, champion } = model;
  const rows = evaluations.slice(0, MAX_ROWS);
  const position = scaleOf(rows, metric);
  const title = `${metric} in each evaluation, ${greaterIsBetter ? "higher" : "lower"} is better`;
  const hidden = evaluations.length - rows.length;
  return (
    <Stack gap={1}>
      <Text fontSize="sm">{title}</Text>
      <Table.ScrollArea whiteSpace="normal">
        <Table.Root size="sm" aria-label={`Evaluations of ${model.name}`}>
          <Table.Header>
            <Table.Row bg="transparent">
              {["Evaluation", "Champion then", "Challenger", "Improvement"].map((name) => (
                <Table.ColumnHeader key={name} px={1}>
                  {name}
                </Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {rows.map((row) => (
              <Table.Row key={row.version} verticalAlign="top" bg="transparent">
                <Table.Cell px={1}>
                  <Link to={runPath(row)} style={{ textDecoration: "underline" }}>
                    {formatTime(new Date(row.at))}
                  </Link>
                  <DecisionText decision={row.decision} />
                </Table.Cell>
                <Table.Cell px={1}>
                  {row.championVersion === null ? (
                    <Missing>{row.score === null ? "not stored" : "no champion yet"}</Missing>
                  ) : (
                    <Score version={row.championVersion} score={row.championScore} />
                  )}
                </Table.Cell>
                <Table.Cell px={1}>
                  <Score version={row.version} score={row.score} metric={row.metric === metric ? null : row.metric} />
                  {row.version === champion.version ? <Badge colorPalette="green">champion now</Badge> : null}
                </Table.Cell>
                <Table.Cell px={1}>
                  <Improvement row={row} position={row.metric === metric ? position : null} />
                </Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Table.ScrollArea>
      <Text fontSize="xs" color="fg.muted">
        Each row compares two models on the same hold-out data; the data of another row may be other data. Dot: the
        improvement over the champion then; filled, and to the right of the line, if better. Bar: its 90 % interval.
        {hidden ? ` ${hidden} earlier evaluation${hidden === 1 ? " is" : "s are"} not shown.` : ""}
      </Text>
    </Stack>
  );
}

function Score({ version, score, metric }: { version: number; score: number | null; metric?: string | null }) {
  return (
    <Box fontVariantNumeric="tabular-nums">
      {score === null ? <Missing>score not stored</Missing> : score.toPrecision(4)}
      <Text fontSize="xs" color="fg.muted">
        version {version}
        {metric ? `, ${metric}` : ""}
      </Text>
    </Box>
  );
}

/** The improvement over the champion then, with its interval. */
export function Improvement({
  row,
  position,
}: {
  row: Evaluation;
  position: ((improvement: number) => number) | null;
}) {
  const { improvement, interval } = row;
  if (improvement === null)
    return (
      <Missing>{row.championVersion === null && row.score !== null ? "nothing to compare" : "not stored"}</Missing>
    );
  return (
    <Box fontVariantNumeric="tabular-nums" minW="7rem">
      {signed(improvement)}
      {position ? <Picture improvement={improvement} interval={interval} position={position} /> : null}
      <Text fontSize="xs" color="fg.muted">
        {interval ? `${signed(interval[0])} to ${signed(interval[1])}` : "no interval: not resampled"}
      </Text>
    </Box>
  );
}

function Picture({
  improvement,
  interval,
  position,
}: {
  improvement: number;
  interval: [number, number] | null;
  position: (improvement: number) => number;
}) {
  const better = improvement > 0;
  return (
    <Box position="relative" h="0.9rem" my="2px" aria-hidden>
      <Box position="absolute" left={`${position(0)}%`} top={0} bottom={0} w="1px" bg="fg" />
      {interval ? (
        <Box
          position="absolute"
          left={`${position(interval[0])}%`}
          w={`${position(interval[1]) - position(interval[0])}%`}
          top="calc(50% - 1px)"
          h="3px"
          bg="fg.muted"
        />
      ) : null}
      <Box
        position="absolute"
        left={`calc(${position(improvement)}% - 4px)`}
        top="calc(50% - 4px)"
        w="9px"
        h="9px"
        rounded="full"
        borderWidth="2px"
        borderColor={better ? visible("green") : "fg.muted"}
        bg={better ? visible("green") : "bg"}
      />
    </Box>
  );
}

/** What the promotion task has decided, and why. */
export function DecisionText({ decision }: { decision: Decision | null }) {
  if (!decision)
    return (
      <Box>
        <Missing>no decision stored</Missing>
      </Box>
    );
  const { promoted, verdict, champion } = decision;
  return (
    <Box>
      <Badge colorPalette={promoted ? "green" : "gray"}>
        {promoted ? "promoted" : champion === null ? "not promoted" : `kept version ${champion}`}
      </Badge>
      <Text fontSize="xs" color="fg.muted">
        {verdict}
      </Text>
    </Box>
  );
}

function Missing({ children }: { children: React.ReactNode }) {
  return (
    <Text as="span" fontSize="xs" color="fg.muted">
      {children}
    </Text>
  );
}

/** Format a difference with its sign: `0.0119` -> `+0.0119`. */
function signed(value: number): string {
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${Number(Math.abs(value).toPrecision(3))}`;
}
