/** The guides that the pages link to, by their file in `docs`. */
export const GUIDES = {
  "own-data": "retrain on your own data",
  registry: "registry, evaluation, promotion",
  drift: "drift",
  fleet: "train on several machines",
  sharing: "share devices among jobs",
  watch: "monitor and control",
} as const;

const DOCS = "https://github.com/paceline/airflow-paceline/blob/main/docs";

/** A link to a guide, in a new tab. */
export function GuideLink({ to }: { to: keyof typeof GUIDES }) {
  return (
    <a href={`${DOCS}/${to}.md`} target="_blank" rel="noreferrer" style={{ textDecoration: "underline" }}>
      Guide: {GUIDES[to]}
    </a>
  );
}
