/// Writes log lines of the running service to standard error, through spdlog.
#pragma once

#include <string>

#include "base/log.h"
#include "base/status.h"

namespace quire {

/// Returns whether log lines are JSON objects. `format`: "json", "text", or "auto": text where
/// standard error is a terminal.
bool logs_json(const std::string& format);

/// Installs the sink of base/log.h; must be called before threads start. `format` as above;
/// `level`: debug, info, warning, error, off. Errors: kInvalidArgument.
Status install_log_sink(const std::string& level, const std::string& format);

/// Returns " key=value". A value with spaces, quotes or signs of equality stands in quotes, and a
/// line break in it is written as an escape, so that one line stays one.
std::string log_text(const LogField& field);

/// Returns one JSON object for a line, as the sink writes it. Values that are JSON numbers stay
/// numbers; empty ones are left out.
std::string log_json(LogLevel level, std::string_view message,
                     std::initializer_list<LogField> fields, std::int64_t unix_ms);

}  // namespace quire
