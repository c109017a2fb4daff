// Of a text's colour against what is behind it (WCAG)
(selector) => {
  const read = (css) => css.match(/[\d.]+/g).slice(0, 3).map(Number);
  const bright = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map(
      (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const text = document.querySelector(selector);
  let behind = text;
  while (/, 0\)$/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const one = bright(read(getComputedStyle(text).color));
  const other = bright(read(getComputedStyle(behind).backgroundColor));
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}
