#include "server/support/log_sink.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <cstdio>

#include "server/json/text.h"

namespace quire {
namespace {

constexpr std::string_view kNames[] = {"debug", "info", "warning", "error", "off"};

spdlog::level::level_enum spd_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

bool is_number(const std::string& s) {
  if (s.empty() || s.size() > 18 || s.find_first_not_of("0123456789.-") != std::string::npos)
    return false;
  const auto digits = s.front() == '-' ? s.substr(1) : s;
  return !digits.empty() && digits.find('-') == std::string::npos && digits.front() != '.' &&
         digits.back() != '.' && std::count(digits.begin(), digits.end(), '.') <= 1 &&
         (digits.size() == 1 || digits[0] != '0' || digits[1] == '.');
}

}  // namespace

std::string log_text(const LogField& field) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  std::string out = " " + std::string(field.key) + "=";
  if (std::ranges::none_of(field.value, [&](char c) {
        return c == ' ' || c == '"' || c == '=' || c == '\\' || is_control(c);
      }))
    return out + field.value;
  out += '"';
  for (const char c : field.value) {
    if (is_control(c)) {
      char escape[5];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned>(c));
      out += c == '\n' ? "\\n" : escape;
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

std::string log_json(LogLevel level, std::string_view message,
                     std::initializer_list<LogField> fields, std::int64_t unix_ms) {
  std::string out = R"({"ts":")" + rfc3339(unix_ms) + R"(","level":")";
  out.append(kNames[static_cast<int>(level)])
      .append(R"(","msg":)")
      .append(boost::json::serialize(boost::json::string_view(message.data(), message.size())));
  for (const auto& f : fields) {
    if (f.value.empty()) continue;
    out.append(",")
        .append(boost::json::serialize(boost::json::string_view(f.key.data(), f.key.size())))
        .append(":");
    out.append(is_number(f.value) ? f.value
                                  : boost::json::serialize(boost::json::string_view(f.value)));
  }
  return out + "}";
}

bool logs_json(const std::string& format) {
  return format == "json" || (format == "auto" && isatty(STDERR_FILENO) == 0);
}

Status install_log_sink(const std::string& level, const std::string& format) {
  LogLevel threshold = LogLevel::kOff;
  bool known = false;
  for (int i = 0; i < 5; ++i) {
    if (level != kNames[i]) continue;
    threshold = static_cast<LogLevel>(i);
    known = true;
  }
  if (!known)
    return Status::invalid("log.level",
                           "log.level is '" + level + "'; use debug, info, warning, error or off");
  auto logger = std::make_shared<spdlog::logger>("quire",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%v");
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::trace);
  const bool as_json = logs_json(format);
  set_log_sink(
      [logger, as_json](LogLevel l, std::string_view message,
                        std::initializer_list<LogField> fields) {
        const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
        std::string line;
        if (as_json) {
          line = log_json(l, message, fields, now);
        } else {
          line = rfc3339(now) + " " + std::string(kNames[static_cast<int>(l)]) + " " +
                 std::string(message);
          for (char& c : line)
            if (c == '\n' || c == '\r') c = ' ';
          for (const auto& f : fields)
            if (!f.value.empty()) line += log_text(f);
        }
        logger->log(spd_level(l), "{}", line);
      },
      threshold);
  return {};
}

}  // namespace quire
