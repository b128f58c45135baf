/** Every text that any page shows goes through here, so that no page forgets it: texts of users, jobs and hosts. */
import { options } from "preact";
import { hides, plain } from "./format.js";

const SAID = ["title", "aria-label", "alt"];

/** @param {any} child What stands in an element: a text, another element, or a list of both. */
function shown(child) {
  if (typeof child === "string") return plain(child);
  return Array.isArray(child) && child.some(mustChange) ? child.map(shown) : child;
}

/** @param {any} child */
function mustChange(child) {
  return typeof child === "string" ? hides(child) : Array.isArray(child) && child.some(mustChange);
}

const before = options.vnode;
options.vnode = (made) => {
  if (typeof made.type === "string") {
    made.props.children = shown(made.props.children);
    for (const name of SAID) if (typeof made.props[name] === "string") made.props[name] = plain(made.props[name]);
  }
  before?.(made);
};
