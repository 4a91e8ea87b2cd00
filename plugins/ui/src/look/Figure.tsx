import { Box, Text } from "@chakra-ui/react";

/** A value with its name above and a note below. */
export function Figure({ name, value, note }: { name: string; value: string; note?: string | undefined }) {
  return (
    <Box minW="6.5rem" flex="1 1 6.5rem">
      <Text color="fg.muted" fontSize="sm">
        {name}
      </Text>
      <Text fontSize="xl" fontWeight="semibold" fontVariantNumeric="tabular-nums" lineHeight="1.3" textWrap="balance">
        {value}
      </Text>
      <Text color="fg.muted" fontSize="xs" textWrap="balance">
        {note}
      </Text>
    </Box>
  );
}
