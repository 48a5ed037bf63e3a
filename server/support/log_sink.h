/// Log lines of the running service on standard error, through spdlog.
#pragma once

#include <string>

#include "base/log.h"
#include "base/status.h"

namespace quire {

/// `format`: "json" (one object a line) or "text". `level`: debug, info, warning, error, off.
/// Installs the sink of base/log.h; call before threads start. Errors: kInvalidArgument.
Status install_log_sink(const std::string& level, const std::string& format);

/// One JSON object for a line, as the sink writes it; values that are JSON numbers stay numbers,
/// empty ones are left out.
std::string log_json(LogLevel level, std::string_view message,
                     std::initializer_list<LogField> fields, std::int64_t unix_ms);

}  // namespace quire
