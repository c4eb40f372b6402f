  // One script in five files, put together by page.py: plain JavaScript, no library, no request, no eval.
  const SVG = "http://www.w3.org/2000/svg";
  const root = document.documentElement;

  // Elements and numbers ------------------------------------------------------------------------------------------
  const put = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const html = (name, attributes = {}, ...children) => put(document.createElement(name), attributes, children);
  const svg = (name, attributes = {}, ...children) => put(document.createElementNS(SVG, name), attributes, children);
  const number = (value, digits) => value.toFixed(digits).replace(/^-(0(?:\.0*)?)$/, "$1").replace("-", "−");
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const there = (value) => value !== null && value !== undefined;
  const least = (values) => values.reduce((one, other) => Math.min(one, other), Infinity); // Math.min(...) has a limit
  const most = (values) => values.reduce((one, other) => Math.max(one, other), -Infinity);

  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
    const first = Math.ceil(low / step - 1e-6), last = Math.floor(high / step + 1e-6);
    const values = Array.from({ length: Math.max(0, last - first + 1) }, (_, place) => (first + place) * step);
    return { values, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }
