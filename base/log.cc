#include "base/log.h"

#include <cstdio>
#include <mutex>

namespace quire {
namespace {

constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};

void write_stderr(LogLevel level, std::string_view message,
                  std::initializer_list<LogField> fields) {
  static std::mutex mu;  // keeps lines whole
  std::string line = "level=";
  line += kNames[static_cast<int>(level)];
  line += " msg=\"";
  line += message;
  line += '"';
  for (const auto& f : fields) {
    line += ' ';
    line += f.key;
    line += '=';
    const bool words = f.value.find(' ') != std::string::npos;
    line += words ? '"' + f.value + '"' : f.value;
  }
  line += '\n';
  std::lock_guard lock(mu);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// The process's one log sink: set by main() before threads start, read-only afterwards. It is never
// destroyed, since other files log while the program is loaded and left.
LogSink& sink() {
  static auto& sink = *new LogSink(write_stderr);
  return sink;
}
constinit LogLevel g_threshold = LogLevel::kInfo;

}  // namespace

void set_log_sink(LogSink to, LogLevel threshold) {
  sink() = to ? std::move(to) : LogSink(write_stderr);
  g_threshold = threshold;
}

void log_line(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (level < g_threshold || level == LogLevel::kOff) return;
  sink()(level, message, fields);
}

}  // namespace quire
