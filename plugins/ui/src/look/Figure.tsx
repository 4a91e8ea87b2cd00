import { Box, Text } from "@chakra-ui/react";

/** One number with its name, and a word on it below. */
export function Figure({ name, value, more }: { name: string; value: string; more?: string | undefined }) {
  return (
    <Box minW="6.5rem" flex="1 1 6.5rem">
      <Text color="fg.muted" fontSize="sm">
        {name}
      </Text>
      <Text fontSize="xl" fontWeight="semibold" fontVariantNumeric="tabular-nums" lineHeight="1.3">
        {value}
      </Text>
      <Text color="fg.muted" fontSize="xs">
        {more}
      </Text>
    </Box>
  );
}
