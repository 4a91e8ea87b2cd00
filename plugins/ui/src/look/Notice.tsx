import { Alert } from "@chakra-ui/react";

/** A message to the user, such as an error or an empty state. */
export function Notice({
  kind = "info",
  children,
}: {
  kind?: "info" | "error" | "warning" | "success";
  children: React.ReactNode;
}) {
  return (
    <Alert.Root status={kind} role={kind === "error" ? "alert" : "status"} my={2}>
      <Alert.Indicator />
      <Alert.Title fontWeight="normal">{children}</Alert.Title>
    </Alert.Root>
  );
}
