#include "base/json_parse.h"

#include <algorithm>
#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kWhiteSpace = " \t\r\n";
/// Bytes that keys may have on average, were there max_keys of them: each is copied several times.
constexpr std::size_t kMeanKeyBytes = 32;

std::string_view without_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

/// Builds the value, and stops at a repeated key, at a number that is not finite and at a bound.
class Handler {
 public:
  using error_code = json::error_code;
  using string_view = json::string_view;
  // The containers of Boost.JSON hold less than 2^31 elements.
  static constexpr std::size_t max_object_size = 0x7ffffffe, max_array_size = 0x7ffffffe,
                               max_key_size = 0x7ffffffe, max_string_size = 0x7ffffffe;

  JsonLimits limits;
  std::optional<std::string> repeated;  ///< the first repeated key
  std::string too_many;                 ///< which bound was passed; empty: none
  json::value_stack stack;

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code& error) {
    objects_.emplace_back();
    return count_value(error);
  }
  bool on_object_end(std::size_t n, error_code&) {
    stack.push_object(n);
    objects_.pop_back();
    return true;
  }
  bool on_array_begin(error_code& error) { return count_value(error); }
  bool on_array_end(std::size_t n, error_code&) {
    stack.push_array(n);
    return true;
  }
  bool on_key_part(string_view s, std::size_t n, error_code& error) {
    if (n > limits.max_key_bytes) return stop(limits.max_key_bytes, "bytes in a key", error);
    key_.append(s.data(), s.size());
    stack.push_chars(s);
    return true;
  }
  bool on_key(string_view s, std::size_t n, error_code& error) {
    if (n > limits.max_key_bytes) return stop(limits.max_key_bytes, "bytes in a key", error);
    if (!count_key(n, error)) return false;
    if (!limits.repeated_keys) {
      key_.append(s.data(), s.size());
      if (!objects_.back().keys.insert(key_).second) {
        repeated = std::move(key_);
        error = json::error::extra_data;
        return false;
      }
    }
    key_.clear();
    stack.push_key(s);
    return true;
  }
  bool on_string_part(string_view s, std::size_t, error_code&) {
    stack.push_chars(s);
    return true;
  }
  bool on_string(string_view s, std::size_t, error_code& error) {
    stack.push_string(s);
    return count_value(error);
  }
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(std::int64_t i, string_view, error_code& error) {
    stack.push_int64(i);
    return count_value(error);
  }
  bool on_uint64(std::uint64_t u, string_view, error_code& error) {
    stack.push_uint64(u);
    return count_value(error);
  }
  bool on_double(double d, string_view, error_code& error) {
    if (!std::isfinite(d)) {
      error = json::error::exponent_overflow;
      return false;
    }
    stack.push_double(d);
    return count_value(error);
  }
  bool on_bool(bool b, error_code& error) {
    stack.push_bool(b);
    return count_value(error);
  }
  bool on_null(error_code& error) {
    stack.push_null();
    return count_value(error);
  }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

 private:
  struct OpenObject {
    std::size_t num_keys = 0;
    std::set<std::string> keys;  ///< empty if keys may repeat; ordered, hence safe from collisions
  };

  bool stop(std::size_t most, std::string_view what, error_code& error) {
    too_many = "more than the " + std::to_string(most) + " " + std::string(what) +
               " that are taken";
    error = json::error::extra_data;
    return false;
  }
  bool count_value(error_code& error) {
    return ++num_values_ <= limits.max_values || stop(limits.max_values, "values", error);
  }
  bool count_key(std::size_t bytes, error_code& error) {
    const std::size_t own = ++objects_.back().num_keys;
    if (own > limits.max_object_keys)
      return stop(limits.max_object_keys, "keys in one object", error);
    if (own == kWideObjectKeys + 1) num_wide_keys_ += kWideObjectKeys;
    if (own > kWideObjectKeys && ++num_wide_keys_ > limits.max_wide_keys)
      return stop(limits.max_wide_keys, "keys in large objects", error);
    key_bytes_ += bytes;
    if (limits.max_keys != SIZE_MAX && key_bytes_ > limits.max_keys * kMeanKeyBytes)
      return stop(limits.max_keys * kMeanKeyBytes, "bytes in keys", error);
    return ++num_keys_ <= limits.max_keys || stop(limits.max_keys, "keys", error);
  }

  std::size_t num_values_ = 0, num_keys_ = 0, num_wide_keys_ = 0, key_bytes_ = 0;
  std::vector<OpenObject> objects_;  ///< those that are still open
  std::string key_;
};

std::string line_and_column(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? byte + 1 : byte - newline;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

}  // namespace

std::optional<JsonTextError> parse_json(std::string_view text, json::value& out,
                                        const JsonLimits& limits) {
  using Kind = JsonTextError::Kind;
  text = without_mark(text);
  if (const std::size_t valid = tokenizer_internal::valid_utf8_prefix(text); valid < text.size())
    return JsonTextError{Kind::kUtf8, valid, "not valid UTF-8", {}};
  if (text.find_first_not_of(kWhiteSpace) == std::string_view::npos)
    return JsonTextError{Kind::kEmpty, 0, "the text is empty", {}};
  json::parse_options options;
  options.max_depth = limits.max_depth;
  json::basic_parser<Handler> parser(options);
  Handler& handler = parser.handler();
  handler.limits = limits;
  handler.stack.reset();
  json::error_code error;
  const std::size_t used = std::min(parser.write_some(false, text.data(), text.size(), error),
                                    text.size());
  if (handler.repeated)
    return JsonTextError{Kind::kRepeatedKey, used,
                         "the key \"" + *handler.repeated + "\" stands twice in one object",
                         *handler.repeated};
  if (!handler.too_many.empty())
    return JsonTextError{Kind::kTooMany, used, std::move(handler.too_many), {}};
  if (error == json::error::too_deep)
    return JsonTextError{Kind::kDepth,
                         used,
                         "nested deeper than " + std::to_string(limits.max_depth) + " levels",
                         {}};
  if (error)
    return JsonTextError{error == json::error::incomplete ? Kind::kUnfinished : Kind::kSyntax,
                         used,
                         error.message(),
                         {}};
  if (text.find_first_not_of(kWhiteSpace, used) != std::string_view::npos)
    return JsonTextError{Kind::kTrailing, used, "more text after the value", {}};
  out = handler.stack.release();
  return std::nullopt;
}

Result<json::value> parse_json(std::string_view text, const JsonLimits& limits) {
  using Kind = JsonTextError::Kind;
  json::value value;
  const std::optional<JsonTextError> error = parse_json(text, value, limits);
  if (!error) return Result<json::value>(std::move(value));
  if (error->kind == Kind::kUtf8)
    return Status::invalid("", "the JSON text is not valid UTF-8 at byte " +
                                   std::to_string(error->byte) + "; send UTF-8");
  if (error->kind == Kind::kEmpty) return Status::invalid("", "the JSON text is empty");
  const std::string place = line_and_column(without_mark(text), error->byte);
  if (error->kind == Kind::kRepeatedKey)
    return Status::invalid("", error->reason + " (" + place + ")");
  if (error->kind == Kind::kTooMany)
    return Status::invalid("", "the JSON text has " + error->reason + " (" + place + ")");
  if (error->kind == Kind::kTrailing)
    return Status::invalid("", "more text after the JSON value at " + place);
  return Status::invalid("", "not valid JSON at " + place + ": " + error->reason);
}

}  // namespace quire
