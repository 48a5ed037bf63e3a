/// Runs `quire serve` as a child process for a test.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/loopback_client.h"

namespace quire::testing {

/// A folder that goes with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct ProcessResult {
  int exit_code = -1;  ///< -1000 - signal when a signal ended it
  std::string out, err;
};
/// Runs a command to its end.
ProcessResult run_process(const std::vector<std::string>& command, const std::string& input = {});

class ServiceProcess {
 public:
  ~ServiceProcess();
  /// Starts and waits until it listens; with `until_ready`, until /readyz is 200. A failed start is
  /// a test failure.
  void start(const std::filesystem::path& store, std::vector<std::string> flags = {},
             bool until_ready = true);
  void signal(int number);
  /// SIGKILL.
  void kill();
  /// Exit code, or -1000 - signal.
  int wait();
  bool running();
  /// SIGTERM, then the exit code.
  int stop();
  std::uint16_t port() const { return port_; }
  std::string log() const;
  /// Waits until the log holds `text`; false after a minute.
  bool wait_for_log(const std::string& text) const;

  /// The reply is held against the description of the API (tests/support/api_check.h).
  RawResponse call(const std::string& method, const std::string& target,
                   const std::string& body = {}, const std::vector<std::string>& headers = {},
                   const std::string& content_type = "application/json") const;
  /// The same, with the body parsed; a body that is no JSON is a test failure.
  boost::json::value json(const std::string& method, const std::string& target,
                          const std::string& body = {},
                          const std::vector<std::string>& headers = {},
                          int* status = nullptr) const;

 private:
  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
  std::filesystem::path log_path_;
};

/// One service for all tests of a suite, with a store of its own. A suite with flags has its own
/// SetUpTestSuite(), which calls start().
class ServiceTest : public ::testing::Test {
 public:
  static void SetUpTestSuite() { start(); }
  static void TearDownTestSuite();

 protected:
  static void start(std::vector<std::string> flags = {});
  /// For the suite's files; goes with the service.
  static const std::filesystem::path& folder();
  static inline std::unique_ptr<ServiceProcess> service;

 private:
  static inline std::unique_ptr<TempFolder> folder_;
};

boost::json::value parse(const std::string& text);
/// Value at a path like "cache.tiers.disk.blocks" or "documents.0.id"; null when it is not there.
/// Lives as long as `value`.
const boost::json::value& at(const boost::json::value& value, const std::string& path);
std::string text_at(const boost::json::value& value, const std::string& path);
std::int64_t int_at(const boost::json::value& value, const std::string& path);

/// A made-up document of about `words` words, different for each seed.
std::string sample_text(unsigned seed, int words);
std::string quoted(const std::string& text);

}  // namespace quire::testing
