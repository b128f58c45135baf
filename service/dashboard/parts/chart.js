/** A line chart over time, drawn by uPlot. */
import { useEffect, useRef } from "preact/hooks";
import { html } from "htm/preact";
import { time } from "./format.js";

const HEIGHT = 140;
/** Colours that differ in lightness, too; the legend names each line. */
const LINES = ["--run", "--wait", "--good", "--bad", "--muted", "--accent", "--gpu-reset", "--text"];

/**
 * @param {{label: string, unit: string, times: number[], lines: {name: string, values: (number|null)[]}[],
 *   range?: [number, number]}} props  times: Unix seconds
 */
export function Chart({ label, unit, times, lines, range }) {
  const place = useRef(null);
  const chart = useRef(null);
  const shape = lines.map((line) => line.name).join("\n");
  useEffect(() => {
    // The element itself, not `place.current`: that is null as soon as the page is another, while these calls may still come.
    const element = place.current;
    const make = () => {
      chart.current?.destroy();
      chart.current = new uPlot(options(element, lines, unit, range), data(times, lines), element);
    };
    make();
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    addEventListener("themechange", make);
    return () => {
      resized.disconnect();
      dark.removeEventListener("change", make);
      removeEventListener("themechange", make);
      chart.current?.destroy();
      chart.current = null;
    };
  }, [shape, unit]);
  useEffect(() => chart.current?.setData(data(times, lines)), [times, lines]);
  return html`<figure class="chart">
    <figcaption>${label} <span class="muted">${unit}</span></figcaption>
    <div ref=${place} role="img" aria-label=${inWords(label, unit, lines)}></div>
  </figure>`;
}

function data(times, lines) {
  return [times, ...lines.map((line) => line.values)];
}

function options(element, lines, unit, range) {
  const style = getComputedStyle(element);
  // light-dark() must be resolved first: a canvas does not know it.
  const colour = (name) => {
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    element.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${style.fontFamily}` };
  return {
    width: element.clientWidth,
    height: HEIGHT,
    cursor: { points: { size: 6 } },
    legend: { show: lines.length > 1 },
    scales: { y: range ? { range } : { range: (_, low, high) => [Math.min(0, low ?? 0), (high ?? 1) * 1.1 || 1] } },
    axes: [{ ...axis, space: 70, size: 28, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => `${tick}`) }],
    series: [
      { label: "at", value: (_, at) => (at === null || at === undefined ? "–" : time(at)) },
      ...lines.map((line, index) => ({
        label: line.name,
        stroke: colour(LINES[index % LINES.length]),
        width: 1.5,
        value: (_, value) => (value === null || value === undefined ? "–" : `${Math.round(value)} ${unit}`),
      })),
    ],
  };
}

function clock(at) {
  const date = new Date(at * 1000);
  const minutes = `${String(date.getHours()).padStart(2, "0")}:${String(date.getMinutes()).padStart(2, "0")}`;
  return minutes === "00:00" ? `${date.getMonth() + 1}/${date.getDate()}` : minutes;
}

function inWords(label, unit, lines) {
  const parts = lines.map(({ name, values }) => {
    const known = values.filter((value) => value !== null);
    if (!known.length) return `${name}: nothing measured`;
    const last = Math.round(known[known.length - 1]);
    return `${name}: last ${last} ${unit}, from ${Math.round(Math.min(...known))} to ${Math.round(Math.max(...known))}`;
  });
  return `${label} over time. ${parts.join("; ")}`;
}
