/// Draws a scatter plot with intervals and a Pareto front as one self-contained SVG element.
#pragma once

#include <string>
#include <vector>

namespace quire {

struct PlotPoint {
  std::string label;
  double x = 0, y = 0, y_low = 0, y_high = 0;  ///< y in [0, 1], shown in per cent
};

struct PlotOptions {
  std::string title, x_label, y_label;
  bool x_percent = false;
  int width = 560, height = 360;
};

/// Draws the points. Less x and more y is better; the front joins the points that no other beats in
/// both. Colours follow the reader's light or dark setting.
std::string pareto_svg(const std::vector<PlotPoint>& points, const PlotOptions& options);
/// Puts elements side by side into one standalone file.
std::string svg_file(const std::vector<std::string>& plots, const PlotOptions& options);

/// Escapes text for HTML and SVG.
std::string escaped(const std::string& text);

}  // namespace quire
