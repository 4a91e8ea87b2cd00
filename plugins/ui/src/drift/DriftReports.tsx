import { Badge, Box, Card, Heading, HStack, SimpleGrid, Stack, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";

import { getXComs } from "../api";
import type { ConceptDrift, DriftReport, FeatureDrift, QualityProblem } from "../contract";
import { Breakable } from "../look/Breakable";
import { Problem } from "../look/Loading";
import { Notice } from "../look/Notice";
import { Distribution } from "./Distribution";
import { Statistics } from "./Statistics";
import { statisticsOf } from "./statistics";
import { Verdict } from "./Verdict";

const REFRESH_MS = 10_000;
/** The reports of a run's drift sensors, with each feature's reference and current distribution, most severe first. */
export function DriftReports({
  dagId,
  runId,
  taskId,
  mapIndex,
  live,
}: {
  dagId: string;
  runId: string;
  taskId?: string | undefined;
  mapIndex?: string | undefined;
  live: boolean;
}) {
  const only = taskId ? Number(mapIndex ?? -1) : undefined;
  const reports = useQuery({
    queryKey: ["drift", dagId, runId, taskId, only, live],
    queryFn: () => getXComs(dagId, runId, "report", taskId, only),
    refetchInterval: live ? REFRESH_MS : false,
  });
  const further = reports.data?.further ?? 0;
  const shown = (reports.data?.entries ?? []).filter((entry) => isReport(entry.value));
  return (
    <Stack gap={6}>
      <Problem query={reports} of="Drift reports" />
      {further ? (
        <Notice kind="warning">
          At most {further} further report{further === 1 ? " is" : "s are"} not shown here: open the page of their task.
        </Notice>
      ) : null}
      {shown.map((entry) => (
        <ReportCard
          key={`${entry.task_id} ${entry.map_index}`}
          name={entry.map_index >= 0 ? `${entry.task_id} [${entry.map_index}]` : entry.task_id}
          report={entry.value as DriftReport}
        />
      ))}
    </Stack>
  );
}

/** Return whether a stored value is a drift report; users may store others. */
export function isReport(value: unknown): value is DriftReport {
  return typeof value === "object" && value !== null && "verdict" in value && "features" in value;
}

function ReportCard({ name, report }: { name: string; report: DriftReport }) {
  return (
    <Card.Root as="section" aria-label={`Drift report of ${name}`} size="sm">
      <Card.Header>
        <HStack justify="space-between" wrap="wrap">
          <Heading as="h2" size="lg">
            Drift: {name}
          </Heading>
          <Verdict verdict={report.verdict} />
        </HStack>
        <Text>{report.reason}</Text>
        <Text fontSize="sm" color="fg.muted">
          {report.reference_rows.toLocaleString()} reference rows{report.reference ? ` (${report.reference})` : ""},{" "}
          {report.current_rows.toLocaleString()} current rows{report.current ? ` (${report.current})` : ""}
        </Text>
      </Card.Header>
      <Card.Body gap={3}>
        <Quality problems={report.quality ?? []} />
        {report.joint ? (
          <Part title="All features together" verdict={report.joint.verdict} reason={report.joint.reason} />
        ) : null}
        {report.concept ? <Concept concept={report.concept} /> : null}
        {report.estimate ? (
          <Part title="The model's estimated error" verdict={report.estimate.verdict} reason={report.estimate.reason} />
        ) : null}
        {report.notes?.map((note) => (
          <Text key={note} fontSize="sm" color="fg.muted">
            {note}
          </Text>
        ))}
        <SimpleGrid minChildWidth="min(20rem, 100%)" gap={4}>
          {report.features?.map((feature) => (
            <Feature key={feature.name} feature={feature} settings={report.settings} />
          ))}
        </SimpleGrid>
      </Card.Body>
    </Card.Root>
  );
}

/** Data quality problems; severe ones prevent training. */
function Quality({ problems }: { problems: QualityProblem[] }) {
  return (
    <>
      {problems.map((problem) => (
        <HStack key={`${problem.kind} ${problem.column}`} wrap="wrap">
          <Badge colorPalette={problem.severe ? "red" : "gray"} size="md">
            {problem.kind}
          </Badge>
          {problem.column ? (
            <Heading as="h3" size="sm">
              {problem.column}
            </Heading>
          ) : null}
          <Text fontSize="sm" color="fg.muted">
            {problem.reason}
          </Text>
        </HStack>
      ))}
    </>
  );
}

/** The model's error, if predictions and labels are available. */
function Concept({ concept }: { concept: ConceptDrift }) {
  const [before, after] = [concept.error_reference, concept.error_current];
  const change =
    before != null && after != null
      ? ` (${concept.measure}: ${before.toPrecision(3)} before, ${after.toPrecision(3)} now)`
      : "";
  return <Part title="The model's error" verdict={concept.verdict} reason={`${concept.reason}${change}`} />;
}

/** The verdict on a part of the report that is not a single feature. */
function Part({ title, verdict, reason }: { title: string; verdict: string; reason: string }) {
  return (
    <HStack wrap="wrap">
      <Heading as="h3" size="sm">
        {title}
      </Heading>
      <Verdict verdict={verdict} />
      <Text fontSize="sm" color="fg.muted">
        {reason}
      </Text>
    </HStack>
  );
}

function Feature({ feature, settings }: { feature: FeatureDrift; settings: DriftReport["settings"] }) {
  return (
    <Box borderWidth="1px" borderRadius="md" p={3} minW={0}>
      <HStack justify="space-between" align="start">
        <Heading as="h3" size="sm" overflowWrap="anywhere">
          <Breakable name={feature.name} />
        </Heading>
        <Verdict verdict={feature.verdict} />
      </HStack>
      <Text fontSize="sm" color="fg.muted">
        {feature.reason}
      </Text>
      <Statistics statistics={statisticsOf(feature, settings)} />
      {feature.histogram ? <Distribution name={feature.name} histogram={feature.histogram} /> : null}
    </Box>
  );
}
