/// The version that `quire version` and GET /version report.
#pragma once

#include <string_view>

namespace quire {
std::string_view version();
/// Returns the short hash of the commit that was built, or "unknown".
std::string_view build_commit();
/// Returns compiler and build type.
std::string_view build_description();
}  // namespace quire
