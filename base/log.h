/// Log lines as a message and key=value fields. The sink is chosen once by main(); the default
/// writes to stderr.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace quire {

enum class LogLevel : unsigned char { kDebug = 0, kInfo, kWarning, kError, kOff };

/// One field; values are text already. No prompt text, keys or salts ever go into a log line.
struct LogField {
  std::string_view key;
  std::string value;
};

using LogSink =
    std::function<void(LogLevel, std::string_view message, std::initializer_list<LogField>)>;

/// Replaces the sink and the threshold. Call before any thread is started.
void set_log_sink(LogSink sink, LogLevel threshold);

/// Threads: may be called from any thread; the sink serialises itself.
void log_line(LogLevel level, std::string_view message,
              std::initializer_list<LogField> fields = {});

inline void log_debug(std::string_view m, std::initializer_list<LogField> f = {}) {
  log_line(LogLevel::kDebug, m, f);
}
inline void log_info(std::string_view m, std::initializer_list<LogField> f = {}) {
  log_line(LogLevel::kInfo, m, f);
}
inline void log_warning(std::string_view m, std::initializer_list<LogField> f = {}) {
  log_line(LogLevel::kWarning, m, f);
}
inline void log_error(std::string_view m, std::initializer_list<LogField> f = {}) {
  log_line(LogLevel::kError, m, f);
}

}  // namespace quire
