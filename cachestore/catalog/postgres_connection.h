/// This file declares one connection to a server that speaks PostgreSQL's protocol. Statements are
/// sent as a pipeline and answered by a deadline. Only the source includes libpq.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

struct pg_conn;
struct pg_result;

namespace quire {

/// A parameter in PostgreSQL's binary form: the bytes of a bytea or a text, which must outlive the
/// call, or a bigint.
class PostgresValue {
 public:
  PostgresValue(std::string_view bytes) : bytes_(bytes) {}    // NOLINT: implicit on purpose
  PostgresValue(const std::string& bytes) : bytes_(bytes) {}  // NOLINT: implicit on purpose
  PostgresValue(std::uint64_t number);                        // NOLINT: implicit on purpose
  std::string_view data() const { return is_number_ ? std::string_view(number_) : bytes_; }

 private:
  std::string_view bytes_;
  std::string number_;
  bool is_number_ = false;
};

struct PostgresStatement {
  std::string_view name;  ///< of a prepared statement; empty: `sql` is sent
  std::string_view sql;   ///< ends with a zero byte, as literals do
  std::vector<PostgresValue> values;
};

/// The rows of one statement.
class PostgresRows {
 public:
  explicit PostgresRows(pg_result* result);
  int size() const;
  std::string_view bytes(int row, int column) const;
  /// Returns a value of the type bigint.
  std::uint64_t number(int row, int column) const;
  std::string_view command() const;  ///< "COMMIT", "INSERT 0 1", ...

 private:
  std::shared_ptr<pg_result> result_;
};

/// Threads: one at a time.
class PostgresConnection {
 public:
  /// Connects to the address, which check_postgres_url() accepts. If it names several hosts, they
  /// are tried in turn, from `first_host` on, where the last one that was taken is kept; null: from
  /// the first. Unless the address says otherwise, one that only reads is not taken. Errors: kIo
  /// (catalog_away()), also once `stop` is set.
  static Result<std::unique_ptr<PostgresConnection>> open(
      const std::string& url, Clock::time_point deadline, const std::atomic<bool>& stop,
      std::atomic<std::size_t>* first_host = nullptr);
  ~PostgresConnection();
  PostgresConnection(const PostgresConnection&) = delete;
  PostgresConnection& operator=(const PostgresConnection&) = delete;

  /// Has the server read and plan a statement, for later use under this name.
  struct Prepared {
    const char* name;
    const char* sql;
  };
  Status prepare(std::span<const Prepared> statements, Clock::time_point deadline);
  /// Sends all statements at once and appends the rows of each that succeeded, in order. The first
  /// failure is returned, and those behind it are not executed. Errors: kIo (catalog_away()).
  Status run(std::span<const PostgresStatement> statements, Clock::time_point deadline,
             std::vector<PostgresRows>* rows);
  /// Leaves a transaction that was begun and not ended.
  void roll_back(Clock::time_point deadline);
  /// Returns whether the connection is of no more use. What the server made of statements that
  /// were not answered is not known then.
  bool is_broken() const { return broken_; }
  /// Returns once something was announced (LISTEN), `wake_fd` is readable, or the time is over.
  void wait_for_announcement(int wake_fd, std::chrono::milliseconds longest);

 private:
  PostgresConnection(pg_conn* connection, const std::atomic<bool>& stop)
      : connection_(connection), stop_(stop) {}
  Status connect(Clock::time_point deadline);
  Status lost(const std::string& why);
  std::string last_error() const;
  /// Waits until the socket can be read, or with `write` written.
  Status wait_for_socket(bool write, Clock::time_point deadline);
  Status receive(Clock::time_point deadline, std::vector<PostgresRows>* rows);

  pg_conn* const connection_;
  const std::atomic<bool>& stop_;
  bool broken_ = false;
};

/// Errors: kInvalidArgument, field `catalog.url`; the message shows no part of the address.
Status check_postgres_url(const std::string& url);
/// Returns host, port and database for messages: "db.example:5432/quire".
std::string postgres_address(const std::string& url);

}  // namespace quire
