// What the dashboard uses of its libraries: their packages have no types beside the files that are vendored.
declare module "preact" {
  export function render(node: unknown, parent: Element): void;
  export const options: { vnode?: (made: { type: unknown; props: any }) => void };
  export class Component<P = any, S = any> {
    props: P;
    state: S;
    constructor(props: P);
    shouldComponentUpdate?(next: P): boolean;
    render(props: P): unknown;
  }
}
declare module "preact/hooks" {
  // What begins as null is an answer of the API, whose fields are in docs/reference/rest.md.
  export function useState(first: null): [any, (next: any) => void];
  export function useState<T>(first: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
  export function useEffect(effect: () => unknown, dependencies?: unknown[]): void;
  export function useMemo<T>(make: () => T, dependencies: unknown[]): T;
  export function useRef<T = any>(first?: T): { current: any };
}
declare module "@preact/signals" {
  export interface Signal<T> {
    value: T;
    subscribe(call: (value: T) => void): () => void;
  }
  export function signal<T>(first: T): Signal<T>;
  export function computed<T>(make: () => T): { readonly value: T };
}
declare module "htm/preact" {
  export function html(parts: TemplateStringsArray, ...values: any[]): any;
}
declare class uPlot {
  constructor(options: any, data: any, parent: Element);
  setSize(size: { width: number; height: number }): void;
  setData(data: any): void;
  destroy(): void;
}
