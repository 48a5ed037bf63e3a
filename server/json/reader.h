/// Reads a JSON object member by member. Every member must be known, of the right type and in
/// range. The first error stops the reading and is kept with its JSON path.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

/// ReadError describes an error of a request in the terms of the API.
struct ReadError {
  std::string code;  ///< "invalid_value", "unknown_field", ...
  std::string message, param;
};

class ObjectReader {
 public:
  /// `path` is "" for the whole body, else "documents[1]", "cache". `value` must outlive the
  /// reader.
  ObjectReader(const boost::json::value& value, std::string path);

  bool ok() const { return !error_; }
  const std::optional<ReadError>& error() const { return error_; }
  void fail(std::string_view member, std::string message, std::string code = "invalid_value");
  /// Takes over the error of a nested reader.
  void adopt(const std::optional<ReadError>& error) {
    if (!error_ && error) error_ = error;
  }

  /// Returns whether the member is present and not null.
  bool has(std::string_view member);
  /// Returns the raw value; null: it is missing or JSON null. It marks the member as known.
  const boost::json::value* raw(std::string_view member);
  const boost::json::object* object(std::string_view member);
  const boost::json::array* array(std::string_view member, std::size_t min_size,
                                  std::size_t max_size);

  // These leave `out` unchanged if the member is missing or null.
  void string(std::string_view member, std::string& out, std::size_t max_bytes = SIZE_MAX);
  void boolean(std::string_view member, bool& out);
  void integer(std::string_view member, std::int64_t& out, std::int64_t min, std::int64_t max);
  void number(std::string_view member, double& out, double min, double max);
  void one_of(std::string_view member, std::string& out,
              std::initializer_list<std::string_view> names);
  std::vector<std::string> strings(std::string_view member, std::size_t max_size);

  /// Fails on members that were not read, and suggests the nearest known name. It must be called
  /// last.
  void finish();
  std::string path_of(std::string_view member) const;

 private:
  const boost::json::object* object_ = nullptr;
  std::string path_;
  std::vector<std::string> known_;
  std::optional<ReadError> error_;
};

/// Returns the name among `names` nearest to `word`; empty: none is close.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace quire
