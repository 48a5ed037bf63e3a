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

/// A temporary folder that is removed with the object.
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
/// Runs a command until it exits.
ProcessResult run_process(const std::vector<std::string>& command, const std::string& input = {});

class ServiceProcess {
 public:
  ~ServiceProcess();
  /// Starts the service and waits until it listens or, with `until_ready`, until /readyz is 200. A
  /// failed start is a test failure.
  void start(const std::filesystem::path& store, std::vector<std::string> flags = {},
             bool until_ready = true);
  void signal(int number);
  /// Sends SIGKILL.
  void kill();
  /// Waits for the exit and returns the exit code, or -1000 - signal.
  int wait();
  bool running();
  /// Sends SIGTERM and returns the exit code.
  int stop();
  std::uint16_t port() const { return port_; }
  std::string log() const;
  /// Waits until the log holds `text`. Returns false after a minute.
  bool wait_for_log(const std::string& text) const;

  /// Makes a request. The reply is checked against the description of the API
  /// (tests/support/api_check.h).
  RawResponse call(const std::string& method, const std::string& target,
                   const std::string& body = {}, const std::vector<std::string>& headers = {},
                   const std::string& content_type = "application/json") const;
  /// Makes a request and returns the parsed body. A body that is not JSON is a test failure.
  boost::json::value json(const std::string& method, const std::string& target,
                          const std::string& body = {},
                          const std::vector<std::string>& headers = {},
                          int* status = nullptr) const;

 private:
  pid_t pid_ = -1;
  std::uint16_t port_ = 0;
  std::filesystem::path log_path_;
};

/// One service for all tests of a suite, with its own store. A suite with flags defines its own
/// SetUpTestSuite(), which calls start().
class ServiceTest : public ::testing::Test {
 public:
  static void SetUpTestSuite() { start(); }
  static void TearDownTestSuite();

 protected:
  static void start(std::vector<std::string> flags = {});
  /// The folder of the suite's files; it is removed with the service.
  static const std::filesystem::path& folder();
  static inline std::unique_ptr<ServiceProcess> service;

 private:
  static inline std::unique_ptr<TempFolder> folder_;
};

boost::json::value parse(const std::string& text);
/// Returns the value at a path like "cache.tiers.disk.blocks" or "documents.0.id"; null: absent.
/// The reference is valid as long as `value`.
const boost::json::value& at(const boost::json::value& value, const std::string& path);
std::string text_at(const boost::json::value& value, const std::string& path);
std::int64_t int_at(const boost::json::value& value, const std::string& path);

/// Returns a made-up document of about `words` words, different for each seed.
std::string sample_text(unsigned seed, int words);
std::string quoted(const std::string& text);

}  // namespace quire::testing
