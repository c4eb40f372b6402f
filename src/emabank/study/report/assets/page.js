  // What else moves on the page: theme, scale, contents, sorting.
  // Theme: at once, before anything is painted --------------------------------------------------------------------
  const KEY = "emabank-theme";
  const remembered = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem(KEY, theme); } catch { /* a page may have no storage */ } };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();

  function themes() {
    const button = document.getElementById("theme"), prefers = matchMedia("(prefers-color-scheme: dark)");
    const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefers.matches);
    const show = () => { button.lastElementChild.textContent = dark() ? "Light" : "Dark"; }; // what a press gives
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      remember(root.dataset.theme);
      show();
    });
    prefers.addEventListener("change", show);
    show();
  }

  // Scale and contents --------------------------------------------------------------------------------------------
  function scales() {
    const select = document.getElementById("scale");
    if (!select) return;
    const scaled = [...document.querySelectorAll("[data-scale]")];
    select.addEventListener("change", () => {
      for (const item of scaled) item.hidden = select.value !== "" && item.dataset.scale !== select.value;
      for (const section of document.querySelectorAll(".study")) {
        const own = [...section.querySelectorAll("[data-scale]")];
        section.hidden = own.length > 0 && own.every((item) => item.hidden);
        document.querySelector(`.links a[href="#${section.id}"]`).parentElement.hidden = section.hidden;
      }
    });
    select.dispatchEvent(new Event("change")); // a browser may keep a choice over a reload
  }

  function contents() {
    const bar = document.querySelector(".bar"), links = bar.querySelector(".links");
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries.filter((one) => one.isIntersecting)) {
        for (const old of bar.querySelectorAll("[aria-current]")) old.removeAttribute("aria-current");
        const link = bar.querySelector(`.links a[href="#${entry.target.id}"]`);
        link.setAttribute("aria-current", "true");
        links.scrollLeft = link.offsetLeft - links.offsetLeft - links.clientWidth / 4; // on a phone they lie in a row
      }
    }, { rootMargin: "-15% 0px -80% 0px" });
    for (const part of document.querySelectorAll(".part")) watch.observe(part);
  }

  // What is folded ------------------------------------------------------------------------------------------------
  function folds() {
    const open = () => {
      const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
      for (let around = target; around; around = around.parentElement) if (around.matches("details")) around.open = true;
      if (target) target.scrollIntoView();
    };
    addEventListener("hashchange", open);
    addEventListener("beforeprint", () => {
      for (const details of document.querySelectorAll("details")) details.open = true;
    });
    open();
  }

  // Tables that are wider than their place say so -----------------------------------------------------------------
  function scrollers() {
    const watch = new ResizeObserver((entries) => {
      for (const { target } of entries) target.classList.toggle("more", target.scrollWidth > target.clientWidth + 1);
    });
    document.querySelectorAll(".scroll").forEach((box) => watch.observe(box));
  }

  // Tables: by a column upwards, downwards, and back to how they were ---------------------------------------------
  const NEXT = { none: "ascending", ascending: "descending", descending: "none" };

  function sortable(table) {
    const body = table.tBodies[0], rows = [...body.rows], heads = [...table.querySelectorAll(".columns th")];
    const key = (row, column) => {
      const cell = row.cells[column], text = cell.textContent.trim();
      if (cell.dataset.value) return [0, Number(cell.dataset.value)];
      return text === "" || text.startsWith("–") ? [2, 0] : [1, text];
    };
    const compare = (one, other, sign) => {
      if (one[0] !== other[0]) return one[0] - other[0]; // numbers, then words, then what is missing, either way
      if (one[0] === 1) return sign * one[1].localeCompare(other[1], "en", { numeric: true });
      return sign * (one[1] - other[1]);
    };
    heads.forEach((head, column) => {
      const name = head.textContent.trim();
      const words = name ? [...head.childNodes] : [html("span", { class: "spoken" }, "row")];
      const button = html("button", { type: "button", class: "sort" }, ...words);
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const next = NEXT[head.getAttribute("aria-sort")], sign = next === "descending" ? -1 : 1;
        for (const other of heads) other.setAttribute("aria-sort", other === head ? next : "none");
        body.classList.toggle("sorted", next !== "none");
        const order = [...rows];
        if (next !== "none") order.sort((one, other) => compare(key(one, column), key(other, column), sign));
        body.append(...order);
      });
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector(".controls").hidden = false;
    themes();
    document.querySelectorAll("[data-sortable]").forEach(sortable);
    drawings();
    scales();
    contents();
    scrollers();
    folds();
  });
