/// Writes the report as one self-contained HTML page, and its plots as one SVG file.
#pragma once

#include <string>
#include <vector>

#include "fidelity/certificate.h"
#include "fidelity/report.h"

namespace quire {

/// Returns tables, two Pareto plots (score against TTFT and against sequence ratio), certificates
/// and the skipped tasks. The page has a light and a dark style.
std::string report_html(const Report& report, const std::vector<Certificate>& certificates);
std::string report_svg(const Report& report);

}  // namespace quire
