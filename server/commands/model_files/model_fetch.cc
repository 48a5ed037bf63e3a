#include "server/commands/model_files/model_fetch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/index.h"
#include "server/hub/model_cache.h"

namespace quire {
namespace {

std::string human(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  while (bytes >= 1024 && u < 4) {
    bytes /= 1024;
    ++u;
  }
  char text[32];
  std::snprintf(text, sizeof text, u == 0 ? "%.0f %s" : "%.1f %s", bytes, units[u]);
  return text;
}

std::string duration(double seconds) {
  const auto s = static_cast<long long>(std::min(seconds, 359'999.0));
  char text[32];
  if (s >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", s / 60, s % 60);
  }
  return text;
}

/// Updates one line on a terminal. Elsewhere it prints a line for each file, and for each tenth of
/// a large one.
class ProgressPrinter {
 public:
  ~ProgressPrinter() { clear(); }

  void operator()(const hub::FetchProgress& p) {
    if (!p.note.empty()) {
      clear();
      std::fprintf(stderr, "quire: %s\n", p.note.c_str());
    } else if (p.file_done) {
      clear();
      std::fprintf(stderr, "%s  %s\n", p.file.c_str(),
                   human(static_cast<double>(p.file_size)).c_str());
      tenths_ = 0;
    } else if (terminal_) {
      bar(p);
    } else if (p.file_size >= (std::uint64_t{64} << 20)) {
      const auto tenths = static_cast<int>(p.file_bytes * 10 / p.file_size);
      if (tenths <= tenths_) return;
      tenths_ = tenths;
      std::fprintf(stderr, "%s  %d %%, %s\n", p.file.c_str(), tenths * 10, rate(p).c_str());
    }
  }

 private:
  static std::string rate(const hub::FetchProgress& p) {
    std::string text = human(static_cast<double>(p.bytes)) + " of " +
                       human(static_cast<double>(p.size));
    if (p.bytes_per_second > 0) {
      text += ", " + human(p.bytes_per_second) + "/s, " +
              duration(static_cast<double>(p.size - std::min(p.bytes, p.size)) /
                       p.bytes_per_second) +
              " left";
    }
    return text;
  }

  void bar(const hub::FetchProgress& p) {
    winsize window{};
    const std::size_t width = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 20
                                  ? window.ws_col
                                  : 80;
    const double share = p.size > 0 ? static_cast<double>(p.bytes) / static_cast<double>(p.size)
                                    : 1;
    const auto full = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * 20);
    std::string line = "[" + std::string(full, '#') + std::string(20 - full, '-') + "] " + rate(p) +
                       "  " + p.file;
    if (line.size() >= width) line.resize(width - 1);
    std::fprintf(stderr, "\r%s\033[K", line.c_str());
    shown_ = true;
  }

  void clear() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
    shown_ = false;
  }

  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  int tenths_ = 0;
};

}  // namespace

Result<std::string> fetch_model(const std::string& name, bool update) {
  QUIRE_ASSIGN_OR_RETURN(const hub::ModelReference reference, hub::parse_reference(name));
  hub::HubOptions options = hub::HubOptions::from_environment();
  ProgressPrinter printer;
  options.on_progress = [&printer](const hub::FetchProgress& p) { printer(p); };
  return hub::get_model(reference, options, update);
}

}  // namespace quire
