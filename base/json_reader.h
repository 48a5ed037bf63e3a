/// Reads a JSON object member by member. Each getter checks type and range; the first error is
/// kept with the path of its member. Users include <boost/json.hpp> themselves, in .cc files only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace boost::json {
class array;
class object;
class value;
}  // namespace boost::json

namespace quire {

struct JsonError {
  std::string code;     ///< "invalid_value", "unknown_field", or one that the caller chose
  std::string message;  ///< for people; names the member
  std::string path;     ///< "messages[2].content"; empty: the whole document
};

enum class JsonType : std::uint8_t { kObject, kArray, kString, kBoolean, kInteger, kNumber };
enum class JsonNeed : std::uint8_t { kOptional, kRequired };

/// JsonMismatch describes a member that is not as its reader needs it.
struct JsonMismatch {
  enum class Kind : std::uint8_t { kMissing, kType, kRange, kSize };
  Kind kind = Kind::kType;
  JsonType wanted = JsonType::kObject;
  std::string path;                           ///< empty: the whole document
  const boost::json::value* found = nullptr;  ///< null: it is missing
  std::int64_t least = 0, most = 0;           ///< bounds of an integer
  double low = 0, high = 0;                   ///< bounds of a number
  std::size_t min_size = 0, max_size = 0;     ///< bounds in items or bytes
};

/// Makes the message of a mismatch. JsonReader's users may have one of their own.
using JsonWords = std::string (*)(const JsonMismatch&);
/// "n is 11; it must be between 1 and 10".
std::string json_words(const JsonMismatch& mismatch);

/// Returns "an object", "a string", ... for messages.
std::string_view kind_name(const boost::json::value& value);

/// Returns the whole number in `value`, which may be written 3.0; none: it is no whole number.
/// What exceeds std::int64_t counts as its largest value.
std::optional<std::int64_t> whole_number(const boost::json::value& value);

/// JsonReader reads the members of one object. JSON null counts as missing. Not thread-safe.
class JsonReader {
 public:
  /// `path` is that of the object: "" for the whole document, else "documents[1]", "cache". A
  /// value that is no object is an error. The value must outlive the reader.
  JsonReader(const boost::json::value& value, std::string path, JsonWords words = json_words);
  JsonReader(const boost::json::object& object, std::string path, JsonWords words = json_words);

  bool ok() const { return !error_; }
  const std::optional<JsonError>& error() const { return error_; }
  /// Records an error of `member`, if it is the first; an empty name means the object itself.
  void fail(std::string_view member, std::string message, std::string code = "invalid_value");
  /// Takes over the error of a nested reader.
  void adopt(const std::optional<JsonError>& error) {
    if (!error_ && error) error_ = error;
  }
  std::string path_of(std::string_view member) const;

  /// Returns whether the member is present and not null.
  bool has(std::string_view member) { return raw(member) != nullptr; }
  /// Returns the value; null: it is missing or JSON null. It marks the member as known.
  const boost::json::value* raw(std::string_view member);
  /// Null: the member is missing or wrong.
  const boost::json::object* object(std::string_view member, JsonNeed need = JsonNeed::kOptional);
  const boost::json::array* array(std::string_view member, std::size_t min_size,
                                  std::size_t max_size, JsonNeed need = JsonNeed::kOptional);

  // These leave `out` unchanged if the member is missing or wrong. Bounds are inclusive.
  void string(std::string_view member, std::string& out, std::size_t max_bytes = SIZE_MAX,
              JsonNeed need = JsonNeed::kOptional);
  void boolean(std::string_view member, bool& out, JsonNeed need = JsonNeed::kOptional);
  void integer(std::string_view member, std::int64_t& out, std::int64_t min, std::int64_t max,
               JsonNeed need = JsonNeed::kOptional);
  void number(std::string_view member, double& out,
              double min = std::numeric_limits<double>::lowest(),
              double max = std::numeric_limits<double>::max(), JsonNeed need = JsonNeed::kOptional);
  void one_of(std::string_view member, std::string& out,
              std::initializer_list<std::string_view> names);
  std::vector<std::string> strings(std::string_view member, std::size_t max_size = SIZE_MAX,
                                   JsonNeed need = JsonNeed::kOptional);

  /// Marks members that are null as known, whatever their names. Clients send answers back with all
  /// members that newer versions of their packages know, null where the answer had none.
  void pass_nulls();

  /// Fails on members that were not read, and suggests the nearest known name. It must be called
  /// last. Readers that skip it accept unknown members.
  void finish();

 private:
  /// Returns the member's value, or null. Records kMissing where it is needed.
  const boost::json::value* find(std::string_view member, JsonType wanted, JsonNeed need);
  void refuse(std::string_view member, JsonMismatch mismatch);

  const boost::json::object* object_ = nullptr;
  std::string path_;
  JsonWords words_;
  std::vector<std::string> known_;
  std::optional<JsonError> error_;
};

}  // namespace quire
