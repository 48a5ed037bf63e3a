#include "bench/gpu/sections.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <sstream>

namespace quire::cuda::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Replaces tabs and line breaks, because a message is one line with fields between tabs.
std::string plain(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return text;
}

std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> out;
  std::istringstream from(line);
  for (std::string field; std::getline(from, field, '\t');) out.push_back(field);
  return out;
}

void take_line(const std::string& line, const Section& section, const SectionEvents& events,
               SectionResult& result) {
  const std::vector<std::string> f = fields(line);
  if (f.size() == 3 && f[0] == "text") result.texts[f[1]] = f[2];
  if (f.size() < 9 || f[0] != "row") return;
  const auto number = [&](std::size_t i) { return std::strtod(f[i].c_str(), nullptr); };
  Row row{f[1], f[2], number(3), number(4), number(5), number(6), number(7), {}, number(8)};
  for (std::size_t i = 9; i + 1 < f.size(); i += 2) row.more.emplace_back(f[i], number(i + 1));
  if (events.row) events.row(section, row);
  result.rows.push_back(std::move(row));
}

/// Reads whole lines from the child until it closes its end; false: the time is up.
bool read_all(int from, Clock::time_point start, double limit_s, const Section& section,
              const SectionEvents& events, SectionResult& result) {
  std::string text;
  for (;;) {
    const double left = limit_s - seconds_since(start);
    if (left <= 0) return false;
    pollfd waiting{from, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::min(left, 3600.0) * 1e3) + 1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) continue;
    char bytes[4096];
    const ssize_t n = read(from, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    text.append(bytes, static_cast<std::size_t>(n));
    for (std::size_t end; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
      take_line(text.substr(0, end), section, events, result);
  }
}

std::string end_of(int status) {
  if (WIFEXITED(status))
    return WEXITSTATUS(status) == 0 ? "" : "exit status " + std::to_string(WEXITSTATUS(status));
  return WIFSIGNALED(status) ? std::string("killed by signal ") + std::to_string(WTERMSIG(status))
                             : "ended";
}

SectionResult run_section(const Section& section, double limit_s, const SectionEvents& events) {
  SectionResult result{section.name, "", 0, {}, {}};
  const auto start = Clock::now();
  int ends[2];
  if (pipe(ends) != 0)
    return {section.name, std::string("no pipe: ") + std::strerror(errno), 0, {}, {}};
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    section.run(SectionOutput(ends[1]));
    std::fflush(nullptr);
    _exit(0);
  }
  close(ends[1]);
  bool in_time = true;
  if (child > 0) in_time = read_all(ends[0], start, limit_s, section, events, result);
  close(ends[0]);
  if (child < 0)
    return {section.name, std::string("no process: ") + std::strerror(errno), 0, {}, {}};
  if (!in_time) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.error = in_time ? end_of(status)
                         : "took longer than " + std::to_string(static_cast<int>(limit_s)) + " s";
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace

void SectionOutput::row(const Row& row) const {
  std::ostringstream line;
  line.precision(17);
  line << "row\t" << plain(row.name) << '\t' << plain(row.shape);
  for (const double x :
       {row.bytes, row.flops, row.median_us, row.fastest_us, row.p90_us, row.host_bytes})
    line << '\t' << x;
  for (const auto& [name, value] : row.more) line << '\t' << plain(name) << '\t' << value;
  send(line.str());
}

void SectionOutput::text(const std::string& name, const std::string& value) const {
  send("text\t" + plain(name) + '\t' + plain(value));
}

void SectionOutput::send(const std::string& line) const {
  const std::string whole = line + '\n';
  for (std::size_t sent = 0; sent < whole.size();) {
    const ssize_t n = write(file_, whole.data() + sent, whole.size() - sent);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(1);  // the reader is gone
    sent += static_cast<std::size_t>(n);
  }
}

std::vector<SectionResult> run_sections(std::span<const Section> sections, double budget_s,
                                        const SectionEvents& events) {
  std::vector<SectionResult> out;
  const auto start = Clock::now();
  for (const Section& section : sections) {
    const double left = budget_s - seconds_since(start);
    out.push_back(left > 0 ? run_section(section, std::min(section.limit_s, left), events)
                           : SectionResult{section.name, "not begun: the time is up", 0, {}, {}});
    if (!out.back().error.empty())
      std::fprintf(stderr, "error: %s: %s\n", section.name.c_str(), out.back().error.c_str());
    if (events.ended) events.ended(out.back());
  }
  return out;
}

}  // namespace quire::cuda::bench
