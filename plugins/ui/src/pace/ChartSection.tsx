import { Box, Heading, HStack, Text } from "@chakra-ui/react";

export type LegendEntry = [name: string, color: string, dashed?: boolean];

/** A chart below its title and the legend of its lines. */
export function ChartSection({
  title,
  keys,
  children,
}: {
  title: string;
  keys: LegendEntry[];
  children: React.ReactNode;
}) {
  return (
    <Box>
      <HStack justify="space-between" wrap="wrap" gap={3} mb={1}>
        <Heading as="h3" size="sm">
          {title}
        </Heading>
        <HStack gap={4} wrap="wrap" aria-hidden>
          {keys.map(([name, color, dashed]) => (
            <HStack key={name} gap={1.5}>
              <Box
                w={5}
                borderTopWidth="2px"
                borderTopStyle={dashed ? "dashed" : "solid"}
                style={{ borderTopColor: color }}
              />
              <Text fontSize="xs" color="fg.muted">
                {name}
              </Text>
            </HStack>
          ))}
        </HStack>
      </HStack>
      {children}
    </Box>
  );
}
