/* Tables that sort, filter and turn pages (TanStack Table), and the table of episodes. */

const PAGE_ROWS = 50;
const TABLE_STATE = {};

/** A table of rows. `columns` are {id, title, write}, `filters` {id: value}; `open` is called with the row chosen. */
function dataTable({ name, label, rows, columns, open, filters = {}, hidden = [], note = null }) {
  const { createTable, getCoreRowModel, getSortedRowModel, getFilteredRowModel, getPaginationRowModel } = TableCore;
  const element = div("table");
  const matches = (row, id, value) => String(row.getValue(id)) === value;
  const contains = (row, id, value) => row.getValue(id).includes(value);
  const definitions = [...columns, ...hidden].map(({ id }) => ({
    id, accessorKey: id, filterFn: id === "text" ? contains : matches, sortUndefined: "last" }));
  const options = {
    data: rows, columns: definitions, renderFallbackValue: null, onStateChange: () => {}, state: {},
    getCoreRowModel: getCoreRowModel(), getSortedRowModel: getSortedRowModel(),
    getFilteredRowModel: getFilteredRowModel(), getPaginationRowModel: getPaginationRowModel(),
  };
  const table = createTable(options);
  const kept = TABLE_STATE[name] ?? { sorting: [], pagination: { pageIndex: 0, pageSize: PAGE_ROWS } };
  let state = { ...table.initialState, ...kept,
    columnFilters: Object.entries(filters).filter(([, value]) => value).map(([id, value]) => ({ id, value })) };
  const apply = (updater) => {
    state = typeof updater === "function" ? updater(state) : updater;
    TABLE_STATE[name] = { sorting: state.sorting, pagination: state.pagination };
    table.setOptions((before) => ({ ...before, state, onStateChange: (next) => { apply(next); draw(); } }));
  };
  const draw = () => {
    const pages = table.getPageCount(), at = table.getState().pagination.pageIndex, found = table.getRowModel().rows;
    if (at >= pages && at > 0) return table.setPageIndex(Math.max(0, pages - 1));
    const focused = document.activeElement?.dataset.column;
    const head = h("tr", {}, ...columns.map(({ id, title }) => {
      const column = table.getColumn(id), sorted = column.getIsSorted();
      const button = h("button", { type: "button", data: { column: id }, on: { click: () => column.toggleSorting() } },
        title, span("arrow", sorted === "asc" ? " ▲" : sorted === "desc" ? " ▼" : ""));
      return h("th", { scope: "col", aria: { sort: sorted === "asc" ? "ascending" : sorted === "desc" ? "descending" : "none" } }, button);
    }));
    const body = found.map(({ original }) => h("tr", {
      tabIndex: 0, on: { click: () => open(original), keydown: (event) => { if (event.key === "Enter") open(original); } },
    }, ...columns.map(({ id, write }, i) => h("td", { className: typeof original[id] === "number" ? "number" : "" },
      write ? write(original) : original[id] ?? "–", i === 0 && note ? note(original) : null))));
    const total = table.getFilteredRowModel().rows.length;
    const first = total ? at * PAGE_ROWS + 1 : 0;
    element.replaceChildren(
      h("table", { aria: { label } }, h("thead", {}, head), h("tbody", {}, ...body)),
      div("pages", span("muted", `${first}–${first ? first + found.length - 1 : 0} of ${total.toLocaleString("en")}`),
        pages > 1 && h("button", { type: "button", disabled: !table.getCanPreviousPage(), on: { click: () => table.previousPage() } }, "Previous page"),
        pages > 1 && h("button", { type: "button", disabled: !table.getCanNextPage(), on: { click: () => table.nextPage() } }, "Next page")));
    if (focused) element.querySelector(`button[data-column="${focused}"]`)?.focus();
    return null;
  };
  apply(state);
  draw();
  return {
    element,
    filter: (next) => table.setColumnFilters(Object.entries(next).filter(([, value]) => value).map(([id, value]) => ({ id, value }))),
    ids: () => table.getPrePaginationRowModel().rows.map((row) => row.original.episode_id),
  };
}

let filters = {};
/** Episodes in the order of the table, which previous and next follow. */
let order = ROWS.map((row) => row.episode_id);
const setFilters = (next) => { filters = next; };

const EPISODE_COLUMNS = [
  { id: "run", title: "Run" }, { id: "iteration", title: "Iteration" }, { id: "split", title: "Split" }, { id: "task", title: "Task" },
  { id: "outcome", title: "Outcome", write: (row) => chip(row.outcome, OUTCOME[row.outcome] ?? "warn") },
  { id: "reward", title: "Reward", write: (row) => number(row.reward) },
  { id: "steps", title: "Steps" }, { id: "invalid", title: "Invalid" }, { id: "drawn", title: "Drawn" },
  { id: "changed", title: "Changed" }, { id: "leaked", title: "Leaked" },
];

function episodesPage() {
  const table = dataTable({
    name: "episodes", label: "Episodes", rows: ROWS, columns: EPISODE_COLUMNS, hidden: [{ id: "text" }], filters,
    open: (row) => { order = table.ids(); location.hash = `#/episode/${encodeURIComponent(row.episode_id)}`; },
  });
  const change = (name, value) => { filters = { ...filters, [name]: value }; table.filter(filters); order = table.ids(); };
  const values = (name) => [...new Set(ROWS.map((row) => row[name]))].sort((a, b) => (a > b ? 1 : -1)).map((value) => [String(value), String(value)]);
  const pick = (name, label) => choice(label, [["", "all"], ...values(name)], filters[name] ?? "", (value) => change(name, value));
  const search = h("input", { type: "search", id: "search", placeholder: "in observations and actions ( / )", value: filters.text ?? "",
    on: { input: () => change("text", search.value.toLowerCase()) } });
  order = table.ids();
  return [
    h("h1", {}, "Episodes", h("small", {}, "drawn: steps that replay has drawn; changed: distilled actions that differ from the judged one; leaked: thoughts that leaked before correction")),
    div("bar", pick("run", "Run"), pick("iteration", "Iteration"), pick("split", "Split"), pick("outcome", "Outcome"),
      h("label", { className: "choice grow" }, span("", "Search"), search)),
    table.element,
  ];
}
