/// What `quire version` and GET /version say.
#pragma once

#include <string_view>

namespace quire {
std::string_view version();
/// Short hash of the commit that was built, or "unknown".
std::string_view build_commit();
/// Compiler, build type.
std::string_view build_description();
}  // namespace quire
