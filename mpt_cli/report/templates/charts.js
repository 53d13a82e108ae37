// Charts of a page (uPlot's), and tables that sort, filter and hide columns. All text is set as text, never as HTML.
"use strict";
(() => {
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const DASHES = { "--": [7, 4], ":": [2, 3], "-.": [8, 3, 2, 3] };
  const BORDERS = { "--": "dashed", ":": "dotted", "-.": "dashed" }; // of a legend, which knows no more
  const WHOLE = [1, 2, 5].flatMap((digit) => [...Array(10).keys()].map((zeros) => digit * 10 ** zeros)).sort((a, b) => a - b);
  const plots = [];

  // ---- numbers
  // written as on the console; the values of a curve have five digits
  const isPower = (value) => Math.abs(Math.log2(value)) > 3.5 && Math.abs(Math.log2(value) - Math.round(Math.log2(value))) < 1e-4;
  function short(value, digits) {
    const isFar = value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e12);
    if (isFar) return value.toExponential(digits ?? 4).replace(/\.?0*e\+?/, "e");
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]])
      if (Math.abs(value) >= size) return +(value / (letter === "k" ? 1e3 : size)).toPrecision(digits ?? 5) + letter;
    return String(+value.toPrecision(digits ?? 6));
  }
  const words = (value, base, digits) =>
    value == null ? "–" : base === 2 && isPower(value) ? `2**${Math.round(Math.log2(value))}` : short(value, digits);

  // ---- one chart
  function axis(label, base) {
    const ink = () => color("faint"), line = () => color("line");
    const power = (value) => Math.log(value) / Math.log(base);
    const isPowerOfBase = (value) => Math.abs(power(value) - Math.round(power(value))) < 1e-9;
    function shown(u, found) { // of a logarithmic axis powers only, as many as have room for their numbers
      if (!base) return found;
      const every = Math.ceil((20 * found.filter(isPowerOfBase).length) / u.height);
      return found.map((value) => (isPowerOfBase(value) && Math.round(power(value)) % every === 0 ? value : null));
    }
    function texts(u, found) {
      const write = (digits) => found.map((value) => (value == null ? "" : words(value, base, digits)));
      const few = write(), isAmbiguous = new Set(few).size < few.length && !base;
      return isAmbiguous ? write(9) : few;
    }
    return {
      label, stroke: ink, filter: shown, grid: { stroke: line, width: 1, filter: shown },
      ticks: { stroke: line, width: 1, filter: shown }, size: 34, labelSize: 18,
      incrs: label === "step" ? WHOLE : undefined,
      font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", values: texts,
    };
  }
  const roomFor = (u, texts) => 16 + 7.5 * Math.max(4, ...(texts ?? []).map((text) => text.length));
  function scale(base, fromZero, curves) {
    if (!base) return { time: false, range: (u, low, high) => {
      const whole = curves.filter((curve, place) => u.series[place + 1].show && curve.is_good); // others may leave the chart
      const ys = low == null || !whole.length ? [low, high] : whole.flatMap((curve) => curve.ys.filter((y) => y != null));
      const [bottom, top] = padded(Math.max(low, ys.reduce((a, b) => Math.min(a, b))), Math.min(high, ys.reduce((a, b) => Math.max(a, b))));
      return [fromZero ? 0 : bottom, top];
    } };
    return { time: false, distr: 3, log: base, range: (u, low, high) => {
      if (low == null) return [1, base];
      const power = (value, round) => base ** round(Math.log(value) / Math.log(base) + (round === Math.ceil ? -1e-9 : 1e-9));
      const room = base === 2 && high < 8 * low ? 8 : 1; // around what never moved
      return [power(low / room, Math.floor), power(high * room, Math.ceil)];
    } };
  }
  function padded(low, high) {
    if (low == null) return [0, 1];
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [low - room, high + room];
  }
  function marks(u, xs, share, shape, stroke) { // × of values that were not finite, | of skipped steps
    const { ctx, bbox } = u, y = bbox.top + bbox.height * (1 - share), size = 4 * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = stroke;
    ctx.setLineDash([]);
    ctx.lineWidth = 1.2 * devicePixelRatio;
    ctx.beginPath();
    for (const value of xs) {
      const x = u.valToPos(value, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      if (shape === "|") { ctx.moveTo(x, y - size); ctx.lineTo(x, y + size); continue; }
      ctx.moveTo(x - size, y - size); ctx.lineTo(x + size, y + size);
      ctx.moveTo(x - size, y + size); ctx.lineTo(x + size, y - size);
    }
    ctx.stroke();
    ctx.restore();
  }
  function series(curve, base) {
    const isLine = Boolean(curve.style), isStair = curve.xs.some((x, place) => x === curve.xs[place + 1]);
    return {
      label: curve.label || " ", stroke: curve.color, width: 1.6, dash: DASHES[curve.style], show: curve.show, spanGaps: false,
      class: curve.label ? "named" : "unnamed", paths: !isLine ? () => null : isStair ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: !isLine || (Boolean(curve.marker) && curve.xs.length < 100) || curve.ys.filter((y) => y != null).length === 1, size: 6, fill: curve.style in DASHES ? color("page") : curve.color },
      value: (u, value) => words(value, base),
    };
  }
  function lineChart(box, found) {
    const { curves } = found;
    const u = plot(box, {
      scales: { x: { time: false }, y: scale(found.log_base, found.from_zero, curves) },
      axes: [axis("step"), { ...axis("", found.log_base), size: roomFor, labelSize: 0 }],
      series: [{ label: "step", value: (u, value) => words(value) },
        ...curves.map((curve) => series(curve, found.log_base))],
      cursor: { sync: { key: "steps" }, drag: { x: true, y: false }, focus: { prox: 24 } },
      focus: { alpha: 0.35 }, legend: { markers: { dash: (u, place) => BORDERS[curves[place - 1]?.style] ?? "solid" } },
      hooks: { setSeries: [(u, place, { show }) => { // the points of a line go with it
        if (show == null) return;
        if (curves[place - 1]?.run != null) choose([curves[place - 1].run], show);
        if (curves[place - 1]?.label)
          for (let next = place; curves[next]?.label === ""; next++) u.setSeries(next + 1, { show });
      }], draw: [(u) => { curves.forEach((curve, place) => u.series[place + 1].show && marks(u, curve.lost, 0.985, "x", curve.color)); marks(u, found.skips, 0.025, "|", color("bad")); }] },
    }, uPlot.join(curves.map((curve) => [curve.xs, curve.ys])));
    for (const curve of curves) if (curve.run != null && curve.show) drawn.add(curve.run);
    lines.push([u, curves]);
  }

  // ---- which runs are drawn: in all charts the same, chosen by boxes in the rows of tables and by the legends
  const drawn = new Set(), switches = [], lines = [];
  function choose(runs, show) {
    const changed = runs.filter((run) => drawn.has(run) !== show);
    if (!changed.length) return; // as when a chart reports what was set here
    for (const run of changed) show ? drawn.add(run) : drawn.delete(run);
    for (const [u, curves] of lines)
      u.batch(() => curves.forEach(({ run }, place) => changed.includes(run) && u.setSeries(place + 1, { show })));
    switches.forEach(mark);
  }
  function mark({ box, runs }) {
    const count = runs.filter((run) => drawn.has(run)).length;
    Object.assign(box, { checked: count === runs.length, indeterminate: count > 0 && count < runs.length });
  }
  function addSwitch(row) {
    const box = document.createElement("input"), runs = row.dataset.runs.split(" ").map(Number), own = { box, runs };
    Object.assign(box, { type: "checkbox", title: "show its runs in the charts" });
    box.setAttribute("aria-label", `Draw the runs of row ${row.cells[0].textContent}`);
    box.addEventListener("change", () => choose(runs, box.checked));
    row.cells[0].prepend(box, " ");
    switches.push(own);
    mark(own);
  }

  // ---- parallel coordinates: a line for each job, an axis for each key
  const MOST_NAMED = 8; // values of an axis
  const LEAST_GAP = 130; // between two axes; where that needs more than the page is wide, the figure scrolls
  function parallelChart(box, found) {
    const { axes, names } = found, caption = document.createElement("p");
    box.style.minWidth = `${axes.length * LEAST_GAP}px`;
    caption.className = "faint";
    caption.textContent = "Point at a line to read its job.";
    const told = (place) => `${names[place]}: ${axes.map((each) => `${each.label} ${each.texts[place]}`).join(", ")}`;
    const ends = (u) => {
      const { ctx } = u;
      ctx.save();
      ctx.fillStyle = color("faint");
      ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.textAlign = "center";
      Object.assign(ctx, { strokeStyle: color("page"), lineWidth: 4 * devicePixelRatio, lineJoin: "round" });
      axes.forEach((each, place) => {
        const x = u.valToPos(place, "x", true), { top, width, height } = u.bbox, isInner = place % (axes.length - 1);
        const most = (isInner ? width / (axes.length - 1) : LEAST_GAP * devicePixelRatio) - 10 * devicePixelRatio;
        const named = new Map(each.at.map((at, job) => [at, each.texts[job]])); // its ends, and the values between where there is room
        for (const [at, text] of named) {
          const y = at === Math.max(...named.keys()) ? top - 5 * devicePixelRatio
            : at === Math.min(...named.keys()) ? top + height + 15 * devicePixelRatio : u.valToPos(at, "y", true) - 5 * devicePixelRatio;
          if (at === 0 || at === 1 || (named.size <= MOST_NAMED && place < axes.length - 1)) {
            ctx.strokeText(text, x, y, most);
            ctx.fillText(text, x, y, most);
          }
        }
        ctx.fillText(each.label, x, top + height + 34 * devicePixelRatio, most);
      });
      ctx.restore();
    };
    const worst = [213, 94, 0], best = [0, 147, 107], share = axes.at(-1).at;
    const mixed = (t) => `rgb(${worst.map((from, place) => Math.round(from + t * (best[place] - from))).join()})`;
    const u = plot(box, {
      padding: [22, LEAST_GAP / 2, 0, LEAST_GAP / 2], legend: { show: false }, focus: { alpha: 0.12 },
      scales: { x: { time: false, range: [0, axes.length - 1] }, y: { range: [-0.04, 1.04] } },
      axes: [{ ...axis(""), size: 52, labelSize: 0, splits: () => axes.map((_, place) => place), values: () => axes.map(() => "") },
        { show: false }],
      series: [{}, ...names.map((name, place) => ({ label: name, width: 1.5, stroke: mixed(found.falls ? 1 - share[place] : share[place]),
        points: { show: false } }))],
      cursor: { y: false, drag: { x: false, y: false }, focus: { prox: 40 } },
      hooks: { draw: [ends], setSeries: [(self, place, options) => {
        if (place && options.focus) caption.textContent = told(place - 1);
      }] },
    }, [axes.map((_, place) => place), ...names.map((_, job) => axes.map((each, place) =>
      each.at[job] + (place < axes.length - 1 ? 0.05 * (job / names.length - 0.5) : 0)))]); // equal values side by side
    box.append(caption);
    return u;
  }

  function plot(box, options, data) {
    const height = () => Math.round(Math.min(300, Math.max(220, box.clientWidth * 0.55)));
    const u = new uPlot({ ...options, width: box.clientWidth || 600, height: height() }, data, box);
    new ResizeObserver(() => {
      if (box.clientWidth && box.clientWidth !== u.width)
        requestAnimationFrame(() => u.setSize({ width: box.clientWidth, height: height() }));
    }).observe(box);
    const over = u.over; // a finger selects as the mouse does; a swipe up or down still scrolls
    for (const [touch, mouse] of [["touchstart", "mousedown"], ["touchmove", "mousemove"], ["touchend", "mouseup"]])
      over.addEventListener(touch, (event) => {
        const { clientX, clientY } = event.changedTouches[0], place = { clientX, clientY, movementX: 1, bubbles: true, view: window };
        if (touch === "touchstart") { over.dispatchEvent(new MouseEvent("mouseenter", place)); over.dispatchEvent(new MouseEvent("mousemove", place)); }
        over.dispatchEvent(new MouseEvent(mouse, place));
      }, { passive: true });
    plots.push(u);
    return u;
  }

  // ---- tables
  const UNITS = { KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, k: 1e3, M: 1e6, G: 1e9 };
  function sortKey(text) { // a number where the cell begins with one: 1,024  2^15  2**15  1:05  3.5 GiB  ≈ -0.01 ± 0.02
    const plain = text.replace(/[≈+,\s]/g, ""), power = plain.match(/^2(?:\^|\*\*)(-?\d+)/);
    if (power) return 2 ** Number(power[1]);
    if (/^\d+(:\d\d)+$/.test(plain)) return plain.split(":").reduce((sum, part) => 60 * sum + Number(part), 0);
    const found = plain.match(/^(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)([A-Za-z]*)/i);
    return found ? Number(found[1]) * (UNITS[found[2]] ?? 1) : null;
  }
  function compare(a, b) {
    const [first, second] = [sortKey(a), sortKey(b)];
    if (first !== null && second !== null && first !== second) return first - second;
    if ((first === null) !== (second === null)) return first === null ? 1 : -1; // what has no number stands last
    return a.localeCompare(b);
  }
  function explore(table) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0], rows = [...body.rows];
    const titles = heads.map((head) => head.textContent);
    const show = (place, isShown) => {
      for (const row of [table.tHead.rows[0], ...rows]) row.cells[place].hidden = !isShown;
      boxes[place].checked = isShown;
    };
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.textContent = titles[place].replace(/[_.]/g, "$&\u200b"); // where it may be broken
      button.type = "button";
      button.addEventListener("click", () => {
        const order = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
        const text = (row) => row.cells[place].textContent;
        body.append(...rows.sort((a, b) => order * compare(text(a), text(b))));
      });
      head.replaceChildren(button);
    });
    const tools = document.createElement("div"), filter = document.createElement("input");
    const columns = document.createElement("details"), summary = document.createElement("summary");
    tools.className = "tools";
    Object.assign(filter, { type: "search", placeholder: "filter rows by words" });
    filter.setAttribute("aria-label", `Filter: ${table.caption.textContent}`);
    filter.addEventListener("input", () => {
      const wanted = filter.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
    });
    summary.textContent = "columns";
    columns.append(summary);
    const boxes = heads.map((_, place) => {
      const label = document.createElement("label"), check = document.createElement("input");
      Object.assign(check, { type: "checkbox", checked: true });
      check.addEventListener("change", () => show(place, check.checked));
      label.append(check, ` ${titles[place]}`);
      columns.append(label);
      return check;
    });
    tools.append(filter, columns);
    table.parentElement.before(tools);
    const isPhone = matchMedia("(max-width: 600px)").matches;
    const scroll = table.parentElement; // too wide: without the least ones
    for (const title of (table.dataset.secondary || "").split("|"))
      if (titles.includes(title) && (isPhone || scroll.scrollWidth > scroll.clientWidth)) show(titles.lastIndexOf(title), false);
    const hidden = boxes.filter((check) => !check.checked).length;
    if (hidden) summary.textContent = `columns (${hidden} hidden)`;
  }

  const found = JSON.parse(document.getElementById("data").textContent);
  for (const box of document.querySelectorAll("[data-chart]")) {
    const chart = found[box.dataset.chart];
    (chart.axes ? parallelChart : lineChart)(box, chart);
  }
  document.querySelectorAll("table.explore").forEach(explore);
  document.querySelectorAll("tr[data-runs]").forEach(addSwitch);
  if (switches.length) document.body.classList.add("switched");
  for (const query of ["(prefers-color-scheme: dark)", "print"])
    matchMedia(query).addEventListener("change", () => plots.forEach((u) => u.redraw(false, true)));
})();
