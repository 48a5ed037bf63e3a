/// The report as one HTML page that needs nothing from outside, and its plots as one SVG file.
#pragma once

#include <string>
#include <vector>

#include "fidelity/certificate.h"
#include "fidelity/report.h"

namespace quire {

/// Tables, two Pareto plots (score against TTFT and against sequence ratio), certificates, what was
/// skipped. Light and dark.
std::string report_html(const Report& report, const std::vector<Certificate>& certificates);
std::string report_svg(const Report& report);

}  // namespace quire
