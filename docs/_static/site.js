// A picture that is shown much smaller than it is, as on a phone, opens at full size.
for (const picture of document.querySelectorAll("article img")) {
  picture.addEventListener("click", () => {
    if (!picture.closest("a") && picture.naturalWidth > 1.3 * picture.clientWidth) location.href = picture.src;
  });
}

// The live figure of docs/concepts/likelihood.md: without this script it is a picture of one margin and one triplet.
const figure = document.getElementById("margin-figure");
if (figure) {
  const W = 640, H = 300, L = 56, R = 16, T = 18, B = 44, highest = 50;
  const at = (name) => document.getElementById(`margin-${name}`);
  const x = (bits) => L + ((bits + 24) / 72) * (W - L - R);
  const y = (share) => H - B - share * (H - T - B);
  const loss = (t) => Math.log1p(Math.exp(-Math.abs(t))) + Math.max(0, -t);
  const gradient = (t) => 1 / (1 + Math.exp(t));
  const path = (height) => {
    const points = [];
    for (let bits = -24; bits <= 48; bits += 0.5) points.push(`${x(bits).toFixed(1)} ${y(height(bits)).toFixed(1)}`);
    return `M${points.join(" L")}`;
  };
  const draw = () => {
    const alpha = Number(at("alpha").value), difference = Number(at("difference").value);
    const lossAt = (bits) => Math.min(1.05, loss(bits - alpha) / highest), gradientAt = (bits) => gradient(bits - alpha);
    at("loss").setAttribute("d", path(lossAt));
    at("gradient").setAttribute("d", path(gradientAt));
    for (const end of ["x1", "x2"]) at("line").setAttribute(end, x(alpha));
    at("label").setAttribute("x", x(alpha) + 5);
    for (const [name, height] of [["loss-point", lossAt], ["gradient-point", gradientAt]]) {
      at(name).setAttribute("cx", x(difference));
      at(name).setAttribute("cy", y(height(difference)));
    }
    const nearer = difference >= 0 ? `${difference} bits nearer` : `${-difference} bits farther`;
    at("caption").textContent = `48 bits, α = ${alpha}: a triplet whose positive is ${nearer} has a loss of ` +
      `${loss(difference - alpha).toFixed(2)} and a gradient of ${gradient(difference - alpha).toFixed(2)}.`;
  };
  figure.querySelector(".controls").hidden = false;
  for (const name of ["alpha", "difference"]) at(name).addEventListener("input", draw);
  draw();
}
