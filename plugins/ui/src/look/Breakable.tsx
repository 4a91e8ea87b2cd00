import { Fragment } from "react";

/** A name of several words that, if it is too long for its line, breaks after `_`, `.`, `/` or `:`. */
export function Breakable({ name }: { name: string }) {
  return name.split(/(?<=[_./:])/).map((part, index) => (
    <Fragment key={index}>
      {index ? <wbr /> : null}
      {part}
    </Fragment>
  ));
}
