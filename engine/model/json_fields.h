/// JsonFields reads typed fields of a model folder's JSON files. Users include <boost/json.hpp>
/// themselves, in .cc files only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_object.h"
#include "base/status.h"

namespace boost::json {
class value;
class object;
}  // namespace boost::json

namespace quire {

/// JsonFields reads typed fields of one JSON object and remembers the first error, after which
/// every read returns its fallback. null counts as missing, as Hugging Face writes it. `object`
/// must outlive it.
class JsonFields {
 public:
  /// Makes a reader whose errors put `prefix` before the names of fields.
  JsonFields(const boost::json::object& object, std::string prefix)
      : object_(object), prefix_(std::move(prefix)) {}

  const Status& status() const { return status_; }
  std::string path(std::string_view key) const { return prefix_ + std::string(key); }
  /// Records kInvalidArgument (fail) or kUnimplemented (unsupported) with field() = the path, if it
  /// is the first error.
  void fail(std::string_view key, std::string message);
  void unsupported(std::string_view key, std::string message);
  /// Takes over the first error of an inner object's reader.
  void adopt(const Status& status);

  const boost::json::value* find(std::string_view key) const;
  /// Reads a whole number in [low, high]. Without a fallback the field is required.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = {});
  double number(std::string_view key, double low, double high, std::optional<double> fallback = {});
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key);
  /// Reads one whole number or a list of at most `most`, each in [0, end); empty if the field is
  /// missing. `what` names an element in errors.
  std::vector<std::int32_t> indices(std::string_view key, std::int64_t end, std::size_t most,
                                    std::string_view what);

  static std::string shown(const boost::json::value& v);

 private:
  static std::optional<std::int64_t> whole_number(const boost::json::value& v);

  const boost::json::object& object_;
  std::string prefix_;
  Status status_;
};

}  // namespace quire
