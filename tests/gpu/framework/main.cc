// Runs tests, each in a child process with a limit of its own: this process touches no device, so
// that a test that fails, crashes or hangs takes no other with it.
//   gpu_suite [option]... [part of a name]...
//     --out DIR         one JSON line for each test, at its end, to DIR/tests.jsonl
//     --limit S         seconds of a test (20)
//     --seconds S       seconds of all (3600); tests that do not begin are written down as such
//     --jobs N          tests at once (1)
//     --last PART       tests whose name contains PART come last
//     --sanitizer FILE  compute-sanitizer: a test that fails runs again under its memcheck
//     --again           a test that fails runs again with CUDA_LAUNCH_BLOCKING=1
//     --again-limit S   seconds of a test that runs again (30)
//     --check TOOL      run every test under this tool of the sanitizer
//     --one NAME        this one test, in this process
//     --list            the names of the tests
// QUIRE_TEST_ROOT is the folder of the sources whose data the tests read, where it is not the one
// they were built from.
// Exit status: 0 all passed, 1 some failed, 2 wrong use, 3 no test has such a name.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "children.h"

#ifndef QUIRE_TEST_ROOT
#define QUIRE_TEST_ROOT "."
#endif

namespace testing {

void Test::RecordProperty(const std::string& key, const std::string& value) {
  dprintf(internal::kRecords, "%s\t%s\n", key.c_str(), value.c_str());
}

namespace {

using internal::Children;
using internal::Ended;

constexpr int kSkipped = 77;
constexpr const char* kNeverCalled = "terminated before first instrumented API call";
constexpr std::size_t kShownLines = 8, kWrittenBytes = 3000;

struct Settings {
  std::string out, sanitizer, check, last, program;
  double limit = 20, again_limit = 30, seconds = 3600;
  int jobs = 1;
  bool again = false;
  std::vector<std::string> parts;
};

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += byte < 0x20 || byte >= 0x7f ? ' ' : c;
    }
  }
  return out + '"';
}

/// Returns the records as members of a JSON object: the largest number of a key, or its first text.
std::string members(const std::string& records) {
  std::map<std::string, std::string> values;
  std::istringstream lines(records);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos) continue;
    const std::string key = line.substr(0, tab), value = line.substr(tab + 1);
    const auto [at, fresh] = values.emplace(key, value);
    if (!fresh && std::atof(value.c_str()) > std::atof(at->second.c_str())) at->second = value;
  }
  std::string out;
  for (const auto& [key, value] : values) {
    char* end = nullptr;
    (void)std::strtod(value.c_str(), &end);
    const bool number = *end == 0 && value.find_first_of("infa") == std::string::npos;
    out += ", " + quoted(key) + ": " + (number ? value : quoted(value));
  }
  return out;
}

/// Appends a line to the file in one write, which nothing that happens later can undo.
void append(const Settings& s, const std::string& name, const char* run, const Ended& end) {
  if (s.out.empty()) return;
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3f", end.seconds);
  const bool passed = end.status == "passed";
  const std::string line =
      "{\"suite\": " + quoted(s.program.substr(s.program.find_last_of('/') + 1)) +
      ", \"name\": " + quoted(name) + ", \"run\": " + quoted(run) +
      ", \"status\": " + quoted(end.status) + ", \"seconds\": " + seconds + members(end.records) +
      (passed ? "" : ", \"output\": " + quoted(end.output.substr(0, kWrittenBytes))) + "}\n";
  std::FILE* file = std::fopen((s.out + "/tests.jsonl").c_str(), "a");
  if (file == nullptr) {
    std::fprintf(stderr, "error: %s/tests.jsonl cannot be written\n", s.out.c_str());
    return;
  }
  (void)std::fwrite(line.data(), 1, line.size(), file);
  (void)std::fclose(file);
}

/// Runs the test in this process.
int run_here(const Case& test) {
  failures() = 0;
  skipped() = false;
  test.body();
  std::cout << std::flush;
  return failures() > 0 ? 1 : skipped() ? kSkipped : 0;
}

/// Replaces this process by the program with the test alone, under `before` if it is not empty.
int run_again(const Settings& s, const std::string& name, std::vector<std::string> before) {
  before.insert(before.end(), {s.program, "--one", name});
  std::vector<char*> arguments;
  for (std::string& argument : before) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  std::perror(arguments[0]);
  return 127;
}

std::vector<std::string> under(const Settings& s, const std::string& tool) {
  return {s.sanitizer, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"};
}

std::string first_lines(const std::string& text, std::size_t most) {
  std::istringstream lines(text);
  std::string out, line;
  for (std::size_t i = 0; i < most && std::getline(lines, line); ++i)
    out += "  " + line.substr(0, 300) + "\n";
  return out;
}

/// Runs tests and keeps what became of them.
class Runner {
 public:
  explicit Runner(const Settings& settings) : s_(settings), children_(s_.jobs, s_.seconds) {}

  void add(const Case& test) {
    ++run_;
    const double limit = s_.check.empty() ? s_.limit : s_.again_limit;
    children_.add({limit,
                   [this, &test] {
                     return s_.check.empty() ? run_here(test)
                                             : run_again(s_, test.name, under(s_, s_.check));
                   },
                   [this, &test](const Ended& end) { take(test, end); }});
  }
  int run() {
    children_.run();
    std::cout << run_ - static_cast<int>(failed_.size()) << " of " << run_ << " tests passed";
    if (skipped_ > 0) std::cout << ", " << skipped_ << " of them skipped";
    std::cout << std::endl;
    for (const std::string& name : failed_) std::cout << "failed: " << name << std::endl;
    return failed_.empty() ? 0 : 1;
  }

 private:
  void take(const Case& test, Ended end) {
    // The sanitizer refuses a program that never calls the device: there is nothing to check.
    const bool never_called = !s_.check.empty() && end.output.find(kNeverCalled) != end.output.npos;
    if (never_called || (s_.check.empty() && end.status == "exit " + std::to_string(kSkipped))) {
      end.status = "passed";
      end.records += "skipped\t1\n";
      ++skipped_;
    }
    append(s_, test.name, s_.check.empty() ? "plain" : s_.check.c_str(), end);
    if (end.status == "passed") return;
    failed_.push_back(test.name);
    std::cout << test.name << ": " << end.status << " after " << static_cast<int>(end.seconds)
              << " s\n"
              << first_lines(end.output, kShownLines) << std::flush;
    if (end.status == "not begun" || !s_.check.empty()) return;
    if (!s_.sanitizer.empty()) repeat(test, "memcheck", under(s_, "memcheck"));
    if (s_.again) repeat(test, "blocking", {"/usr/bin/env", "CUDA_LAUNCH_BLOCKING=1"});
  }
  void repeat(const Case& test, const char* run, std::vector<std::string> before) {
    children_.add({s_.again_limit,
                   [this, &test, before] { return run_again(s_, test.name, before); },
                   [this, &test, run](const Ended& end) { append(s_, test.name, run, end); }});
  }

  const Settings& s_;
  Children children_;
  int run_ = 0, skipped_ = 0;
  std::vector<std::string> failed_;
};

bool wanted(const Settings& s, const std::string& name) {
  return s.parts.empty() || std::any_of(s.parts.begin(), s.parts.end(), [&](const auto& part) {
           return name.find(part) != std::string::npos;
         });
}

int usage(const std::string& what) {
  std::cerr << "error: " << what << "; the first lines of framework/main.cc say the options\n";
  return 2;
}

int run(Settings s, int argc, char** argv) {
  std::string one;
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option.rfind("--", 0) != 0) {
      s.parts.push_back(option);
      continue;
    }
    if (option == "--list" || option == "--again") {
      (option == "--list" ? list : s.again) = true;
      continue;
    }
    if (i + 1 == argc) return usage(option + " is not known, or lacks its value");
    const std::string value = argv[++i];
    if (option == "--out")
      s.out = value;
    else if (option == "--limit")
      s.limit = std::atof(value.c_str());
    else if (option == "--again-limit")
      s.again_limit = std::atof(value.c_str());
    else if (option == "--seconds")
      s.seconds = std::atof(value.c_str());
    else if (option == "--jobs")
      s.jobs = std::max(1, std::atoi(value.c_str()));
    else if (option == "--last")
      s.last = value;
    else if (option == "--sanitizer")
      s.sanitizer = value;
    else if (option == "--check")
      s.check = value;
    else if (option == "--one")
      one = value;
    else
      return usage(option + " is not known");
  }
  if (!s.check.empty() && s.sanitizer.empty()) return usage("--check needs --sanitizer");
  std::vector<const Case*> tests;
  for (const Case& test : cases()) {
    if (one.empty() ? wanted(s, test.name) : test.name == one) tests.push_back(&test);
  }
  if (tests.empty()) return 3;
  if (list) {
    for (const Case* test : tests) std::cout << test->name << "\n";
    return 0;
  }
  const char* root = std::getenv("QUIRE_TEST_ROOT");
  if (chdir(root != nullptr && *root != 0 ? root : QUIRE_TEST_ROOT) != 0) {
    std::perror("the folder of the sources");
    return 2;
  }
  if (!one.empty()) return run_here(*tests[0]);
  if (!s.last.empty()) {
    std::stable_partition(tests.begin(), tests.end(), [&](const Case* test) {
      return test->name.find(s.last) == std::string::npos;
    });
  }
  Runner runner(s);
  for (const Case* test : tests) runner.add(*test);
  return runner.run();
}

}  // namespace
}  // namespace testing

int main(int argc, char** argv) {
  testing::Settings settings;
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  settings.program = n > 0 ? std::string(path, static_cast<std::size_t>(n)) : argv[0];
  if (const char* out = std::getenv("OUT"); out != nullptr) settings.out = out;
  return testing::run(std::move(settings), argc, argv);
}
