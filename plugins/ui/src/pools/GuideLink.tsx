import { GUIDE } from "./health";

/** A link to the guide that shows how to share devices. */
export function GuideLink() {
  return (
    <a href={GUIDE} target="_blank" rel="noreferrer" style={{ textDecoration: "underline" }}>
      Guide: share devices among jobs
    </a>
  );
}
