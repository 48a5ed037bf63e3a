/// JsonFields reads typed fields of a model folder's JSON files. Users include <boost/json.hpp>
/// themselves, in .cc files only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_object.h"
#include "base/json_reader.h"
#include "base/status.h"

namespace quire {

/// JsonFields is a JsonReader whose getters return values and take fallbacks. It never refuses
/// unknown fields, because configurations name many that this build does not need. After an error
/// a read returns its fallback. null counts as missing, as Hugging Face writes it. `object` must
/// outlive it.
class JsonFields {
 public:
  /// `path` is that of the object; empty: the whole file.
  JsonFields(const boost::json::object& object, std::string path);

  /// The first error, with its field's path.
  Status status() const;
  std::string path(std::string_view key) const { return reader_.path_of(key); }
  /// Records kInvalidArgument (fail) or kUnimplemented (unsupported) with field() = the path, if it
  /// is the first error.
  void fail(std::string_view key, std::string message);
  void unsupported(std::string_view key, std::string message);
  /// Takes over the first error of an inner object's reader.
  void adopt(const JsonFields& inner) { reader_.adopt(inner.reader_.error()); }

  const boost::json::value* find(std::string_view key) { return reader_.raw(key); }
  /// Reads a whole number in [low, high]. Without a fallback the field is required.
  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = {});
  double number(std::string_view key, double low, double high, std::optional<double> fallback = {});
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key);
  /// Reads a list of `count` numbers in [low, high]; empty after an error.
  std::vector<float> numbers(std::string_view key, std::size_t count, double low, double high);
  /// Reads one whole number or a list of at most `most`, each in [0, end); empty if the field is
  /// missing. `what` names an element in errors.
  std::vector<std::int32_t> indices(std::string_view key, std::int64_t end, std::size_t most,
                                    std::string_view what);

  static std::string shown(const boost::json::value& v);

 private:
  JsonReader reader_;
};

}  // namespace quire
