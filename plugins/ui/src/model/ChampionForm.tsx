import { Button, Checkbox, Dialog, Field, Input, Stack, Text } from "@chakra-ui/react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useRef, useState } from "react";

import { putChampion } from "../api";
import type { ChampionReading, ShownPromotion } from "../contract";
import { Notice } from "../look/Notice";
import type { VersionRow } from "./versionsOf";

interface Props {
  /** The champion that the user has seen: Airflow rejects the change if there is another. */
  reading: ChampionReading;
  row: VersionRow;
  onClose: (promotion: ShownPromotion | null) => void;
}

/** A dialog that asks for the reason of a new champion, and says what follows from it. */
export function ChampionForm({ reading, row, onClose }: Props) {
  const { model, registry, champion } = reading;
  const isRelease = row.change === "release";
  const [reason, setReason] = useState("");
  const [hold, setHold] = useState(row.change === "roll back");
  const reasonField = useRef<HTMLInputElement>(null);
  const queries = useQueryClient();
  const change = useMutation({
    mutationFn: () => putChampion({ registry, model, version: row.version, seen: champion, reason, hold }),
    onSuccess: onClose,
    onSettled: () => void queries.invalidateQueries(),
  });
  const title = isRelease
    ? `Let tasks replace version ${row.version} of ${model} again?`
    : `Make version ${row.version} of ${model} the champion?`;
  return (
    <Dialog.Root
      open
      role="alertdialog"
      initialFocusEl={() => reasonField.current}
      // While the change is under way it cannot be taken back, and its error would be lost.
      onOpenChange={({ open }) => (open || change.isPending ? undefined : onClose(null))}
    >
      <Dialog.Backdrop />
      <Dialog.Positioner>
        <Dialog.Content mx={3}>
          <form
            onSubmit={(event) => {
              event.preventDefault();
              if (reason.trim()) change.mutate();
            }}
          >
            <Dialog.Header>
              <Dialog.Title>{title}</Dialog.Title>
            </Dialog.Header>
            <Dialog.Body>
              <Stack gap={3}>
                <Text>{consequence(champion, row)}</Text>
                {isRelease ? null : (
                  <Text fontSize="sm" color="fg.muted">
                    DAGs that are scheduled on an asset of the model get no event: to send one, use{" "}
                    <code>paceline model promote --asset</code> instead.
                  </Text>
                )}
                <Field.Root required>
                  <Field.Label>Reason</Field.Label>
                  <Input
                    ref={reasonField}
                    value={reason}
                    maxLength={1000}
                    onChange={(event) => setReason(event.target.value)}
                  />
                  <Field.HelperText>Stored with your name in the history of promotions.</Field.HelperText>
                </Field.Root>
                {isRelease ? null : (
                  <Checkbox.Root checked={hold} onCheckedChange={({ checked }) => setHold(checked === true)}>
                    <Checkbox.HiddenInput />
                    <Checkbox.Control />
                    <Checkbox.Label>Hold it: tasks promote no other version until it is released</Checkbox.Label>
                  </Checkbox.Root>
                )}
                {change.isError ? <Notice kind="error">{change.error.message}</Notice> : null}
              </Stack>
            </Dialog.Body>
            <Dialog.Footer flexWrap="wrap">
              <Button type="button" variant="outline" disabled={change.isPending} onClick={() => onClose(null)}>
                Cancel
              </Button>
              <Button type="submit" disabled={!reason.trim()} loading={change.isPending} loadingText="Changing">
                {isRelease ? "Release" : `Make version ${row.version} the champion`}
              </Button>
            </Dialog.Footer>
          </form>
        </Dialog.Content>
      </Dialog.Positioner>
    </Dialog.Root>
  );
}

function consequence(champion: number | null, { change, version }: VersionRow): string {
  if (change === "release") return "Then a task may promote a better version, as before the hold.";
  const replaced = champion === null ? "" : ` instead of version ${champion}`;
  return `Services and drift checks that read the champion then use version ${version}${replaced}.`;
}
