import { useRef } from "react";

interface Answered<T> {
  data: T | undefined;
  dataUpdatedAt: number;
}

/** Return the data of a query, or of the request before as long as there are none, also if the newest one fails. */
export function useKept<T>({ data, dataUpdatedAt }: Answered<T>): Answered<T> {
  const kept = useRef<Answered<T>>({ data, dataUpdatedAt });
  if (data !== undefined) kept.current = { data, dataUpdatedAt };
  return kept.current;
}
