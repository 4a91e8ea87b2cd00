import { Box, Grid, Text } from "@chakra-ui/react";

/** Values in columns of equal width, as many as there is room for. */
export function FigureGrid({ label, children }: { label?: string; children: React.ReactNode }) {
  return (
    <Grid
      templateColumns="repeat(auto-fit, minmax(6.5rem, 1fr))"
      gap={4}
      {...(label ? { as: "section", "aria-label": label } : {})}
    >
      {children}
    </Grid>
  );
}

/** A value with its name above and a note below. */
export function Figure({ name, value, note }: { name: string; value: string; note?: string | undefined }) {
  return (
    <Box>
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
