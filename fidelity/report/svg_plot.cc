#include "fidelity/report/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace quire {
namespace {

constexpr double kLeft = 62, kRight = 24, kTop = 40, kBottom = 52;
constexpr const char* kStyle =
    "<style>.pl{--ink:#1f2328;--dim:#656d76;--grid:#d8dee4;--dot:#0b62c4;--front:#c4500b;font:12px "
    "system-ui,sans-serif}"
    "@media(prefers-color-scheme:dark){.pl{--ink:#e6edf3;--dim:#9198a1;--grid:#3d444d;--dot:#"
    "58a6ff;--front:#f0883e}}"
    ".pl text{fill:var(--ink)}.pl .d{fill:var(--dim)}.pl .g{stroke:var(--grid)}.pl "
    ".e{stroke:var(--dot);stroke-width:1.5}"
    ".pl circle{fill:var(--dot)}.pl "
    ".f{fill:none;stroke:var(--front);stroke-width:1.5;stroke-dasharray:5 4}</style>";

std::string fixed(double v, int decimals) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", decimals, v);
  return text;
}

/// Returns a step of 1, 2 or 5 times a power of ten that gives at most `count` parts.
double tick_step(double range, int count) {
  const double raw = range / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double m : {1.0, 2.0, 5.0})
    if (m * power >= raw) return m * power;
  return 10 * power;
}

std::string line(double x1, double y1, double x2, double y2, const char* kind) {
  return "<line class=\"" + std::string(kind) + "\" x1=\"" + fixed(x1, 1) + "\" y1=\"" +
         fixed(y1, 1) + "\" x2=\"" + fixed(x2, 1) + "\" y2=\"" + fixed(y2, 1) + "\"/>";
}

std::string text(double x, double y, const char* anchor, const std::string& what,
                 const char* kind = "", const std::string& more = "") {
  return "<text class=\"" + std::string(kind) + "\" x=\"" + fixed(x, 1) + "\" y=\"" + fixed(y, 1) +
         "\" text-anchor=\"" + anchor + "\"" + more + ">" + escaped(what) + "</text>";
}

}  // namespace

std::string escaped(const std::string& in) {
  std::string out;
  for (const char c : in) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out.push_back(c);
  }
  return out;
}

std::string pareto_svg(const std::vector<PlotPoint>& all, const PlotOptions& o) {
  std::vector<PlotPoint> points;
  for (const auto& p : all)
    if (std::isfinite(p.x) && std::isfinite(p.y) && std::isfinite(p.y_low) &&
        std::isfinite(p.y_high))
      points.push_back(p);
  double x_max = 0, y_min = 1, y_max = 0;
  for (const auto& p : points) {
    x_max = std::max(x_max, p.x);
    y_min = std::min(y_min, p.y_low);
    y_max = std::max(y_max, p.y_high);
  }
  x_max = o.x_percent ? std::max(1.0, x_max) : std::max(1e-9, x_max);
  const double x_step = o.x_percent ? 0.2 : tick_step(x_max * 1.08, 6);
  const double x_end = o.x_percent ? x_max * 1.06 : std::ceil(x_max * 1.02 / x_step) * x_step;
  y_min = std::max(0.0, std::floor((y_min - 0.02) * 10) / 10);
  y_max = std::min(1.0, std::ceil((y_max + 0.02) * 10) / 10);
  if (y_max <= y_min) y_max = y_min + 0.1;
  const double y_step = tick_step(y_max - y_min, 6);
  const double w = o.width - kLeft - kRight, h = o.height - kTop - kBottom;
  const auto px = [&](double x) { return kLeft + w * x / x_end; };
  const auto py = [&](double y) { return kTop + h * (1 - (y - y_min) / (y_max - y_min)); };
  std::string out = "<svg class=\"pl\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " +
                    std::to_string(o.width) + " " + std::to_string(o.height) + "\" width=\"" +
                    std::to_string(o.width) + "\" height=\"" + std::to_string(o.height) +
                    "\" role=\"img\">" + kStyle + "<title>" + escaped(o.title) + "</title>";
  out += text(kLeft, 20, "start", o.title, "", " font-weight=\"600\"");
  for (double x = 0; x <= x_end * 1.0001; x += x_step) {
    out += line(px(x), kTop, px(x), kTop + h, "g");
    out += text(px(x), kTop + h + 18, "middle",
                o.x_percent ? fixed(x * 100, 0) + " %" : fixed(x, x_step < 1 ? 1 : 0), "d");
  }
  for (double y = std::ceil(y_min / y_step) * y_step; y <= y_max * 1.0001; y += y_step) {
    out += line(kLeft, py(y), kLeft + w, py(y), "g");
    out += text(kLeft - 8, py(y) + 4, "end", fixed(y * 100, y_step < 0.01 ? 1 : 0) + " %", "d");
  }
  out += text(kLeft + w / 2, o.height - 12, "middle", o.x_label);
  const std::string turn = " transform=\"rotate(-90 16 " + fixed(kTop + h / 2, 1) + ")\"";
  out += text(16, kTop + h / 2, "middle", o.y_label, "", turn);
  std::sort(points.begin(), points.end(),
            [](const auto& a, const auto& b) { return a.x != b.x ? a.x < b.x : a.y > b.y; });
  std::string front;
  double best = -1;
  for (const auto& p : points) {
    if (p.y <= best) continue;
    front += (best < 0 ? "M" : " L") + fixed(px(p.x), 1) + " " + fixed(py(p.y), 1);
    best = p.y;
  }
  if (!front.empty()) out += "<path class=\"f\" d=\"" + front + "\"/>";
  // Labels of points close to each other are moved apart.
  std::vector<std::pair<double, double>> placed;
  for (const auto& p : points) {
    const double x = px(p.x), y = py(p.y);
    out += line(x, py(p.y_low), x, py(p.y_high), "e") + "<circle cx=\"" + fixed(x, 1) + "\" cy=\"" +
           fixed(y, 1) + "\" r=\"4.5\"><title>" + escaped(p.label) + ": " + fixed(p.y * 100, 1) +
           " % [" + fixed(p.y_low * 100, 1) + ", " + fixed(p.y_high * 100, 1) + "] at " +
           (o.x_percent ? fixed(p.x * 100, 1) + " %" : fixed(p.x, 1)) + "</title></circle>";
    double label_y = y - 9;
    const bool right = x < kLeft + w * 0.66;
    const auto near = [&](double at) {
      return std::any_of(placed.begin(), placed.end(), [&](const auto& q) {
        return std::abs(q.first - x) < 120 && std::abs(q.second - at) < 14;
      });
    };
    for (int i = 0; i < 12 && near(label_y); ++i) label_y -= 15;
    placed.emplace_back(x, label_y);
    out += text(right ? x + 8 : x - 8, label_y, right ? "start" : "end", p.label);
  }
  return out + "</svg>";
}

std::string svg_file(const std::vector<std::string>& plots, const PlotOptions& o) {
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " +
                    std::to_string(o.width * static_cast<int>(plots.size())) + " " +
                    std::to_string(o.height) + "\">\n";
  for (std::size_t i = 0; i < plots.size(); ++i) {
    std::string plot = plots[i];
    plot.insert(4, " x=\"" + std::to_string(o.width * static_cast<int>(i)) + "\"");
    out += plot + "\n";
  }
  return out + "</svg>\n";
}

}  // namespace quire
