import { Button, Heading, HStack, Stack, Table, Text } from "@chakra-ui/react";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link, useNavigate, useSearchParams } from "react-router-dom";

import { getModel } from "../api";
import type { ChampionReading, ModelView, ShownPromotion } from "../contract";
import { formatTime } from "../format";
import { historyPath } from "../history/subjects";
import { GuideLink } from "../look/GuideLink";
import { Loading, Problem } from "../look/Loading";
import { Notice } from "../look/Notice";
import { ChampionForm } from "./ChampionForm";
import { VersionTable } from "./VersionTable";
import { comparePath, compareText, MOST_COMPARED, type VersionRow, versionsOf } from "./versionsOf";

const REFRESH_MS = 15_000;

/** One model: its versions with their scores and origins, and its champions. The URL names model and registry. */
export function ModelPage() {
  const [parameters] = useSearchParams();
  const [model, registry] = [parameters.get("model") ?? "", parameters.get("registry") ?? ""];
  const query = useQuery({
    queryKey: ["model", registry, model],
    queryFn: () => getModel(registry, model),
    refetchInterval: REFRESH_MS,
  });
  return (
    <Stack gap={5}>
      <HStack gap={4} wrap="wrap" fontSize="sm">
        <Link to="/plugin/retraining/models" style={{ textDecoration: "underline" }}>
          All models
        </Link>
        <Link
          to={historyPath({ model, registry, dag_id: null, task_id: null, asset: null })}
          style={{ textDecoration: "underline" }}
        >
          Drift history
        </Link>
        <GuideLink to="registry" />
      </HStack>
      <Stack gap={0}>
        <Heading as="h1" size="xl" overflowWrap="anywhere">
          {model}
        </Heading>
        <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere">
          {registry}
        </Text>
      </Stack>
      <Problem query={query} />
      {query.isPending ? <Loading query={query} height="20rem" /> : null}
      {query.data ? <Versions view={query.data} /> : null}
    </Stack>
  );
}

function Versions({ view }: { view: ModelView }) {
  const navigate = useNavigate();
  const [chosen, setChosen] = useState<number[]>([]);
  // What the user saw when they opened the dialog: the newest reading may have another champion.
  const [changing, setChanging] = useState<{ reading: ChampionReading; row: VersionRow } | null>(null);
  const [changed, setChanged] = useState<ShownPromotion | null>(null);
  const { reading, refusal, promotions, older } = view;
  const table = versionsOf(view);
  const { champion, metric, greaterIsBetter } = table;
  return (
    <>
      <Text fontSize="sm">
        {champion.source}
        {champion.reason ? ` Reason: ${champion.reason}` : ""}
      </Text>
      {changed ? <Notice kind="success">{outcomeOf(changed)}</Notice> : null}
      {refusal ? <Notice>{refusal}</Notice> : null}
      <Stack gap={2} as="section" aria-label="Versions">
        <HStack justify="space-between" wrap="wrap">
          <Heading as="h2" size="md">
            Versions
          </Heading>
          <Button
            size="xs"
            variant="outline"
            disabled={chosen.length < 2 || chosen.length > MOST_COMPARED}
            onClick={() => void navigate(comparePath(reading, chosen))}
          >
            {compareText(chosen.length)}
          </Button>
        </HStack>
        <VersionTable
          table={table}
          name={reading.model}
          chosen={chosen}
          choose={(version, isChosen) =>
            setChosen((before) => [...before.filter((one) => one !== version), ...(isChosen ? [version] : [])])
          }
          change={(row) => {
            setChanged(null);
            setChanging({ reading, row });
          }}
        />
        <Text fontSize="xs" color="fg.muted">
          {metric ? `${metric}: ${greaterIsBetter ? "higher" : "lower"} is better. ` : ""}
          An improvement is over the champion then, on the same hold-out data; the bar is its 90 % interval.
          {older ? " Older versions are not shown: paceline model list has all of them." : ""}
        </Text>
      </Stack>
      {promotions.length ? <Champions promotions={promotions} /> : null}
      {changing ? (
        <ChampionForm
          {...changing}
          onClose={(promotion) => {
            setChanging(null);
            setChanged(promotion);
          }}
        />
      ) : null}
    </>
  );
}

/** Describe a change of the champion: `Version 1 is the champion now, instead of version 2. Tasks do not replace it.` */
export function outcomeOf({ version, previous, hold }: ShownPromotion): string {
  const replaced = previous === null || previous === version ? "" : `, instead of version ${previous}`;
  return `Version ${version} is the champion now${replaced}. ${hold ? "Tasks do not replace it until it is released." : "Tasks may replace it."}`;
}

/** The newest changes of the champion. */
function Champions({ promotions }: { promotions: ShownPromotion[] }) {
  return (
    <Stack gap={2} as="section" aria-label="Champions">
      <Heading as="h2" size="md">
        Champions
      </Heading>
      <Table.ScrollArea whiteSpace="normal">
        <Table.Root size="sm" aria-label="Changes of the champion">
          <Table.Header>
            <Table.Row>
              {["Time", "Champion", "Reason"].map((title) => (
                <Table.ColumnHeader key={title} px={1}>
                  {title}
                </Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {promotions.map(({ version, previous, promoted_at, reason, hold }) => (
              <Table.Row key={promoted_at} verticalAlign="top">
                <Table.Cell px={1}>{formatTime(new Date(promoted_at))}</Table.Cell>
                <Table.Cell px={1}>
                  {previous === null || previous === version
                    ? `version ${version}`
                    : `version ${previous}\u00a0→\u00a0${version}`}
                  {hold ? ", held" : previous === version ? ", released" : ""}
                </Table.Cell>
                <Table.Cell px={1} overflowWrap="anywhere">
                  {reason}
                </Table.Cell>
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Table.ScrollArea>
    </Stack>
  );
}
